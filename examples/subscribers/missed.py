"""Print every missed deadline once: python missed.py BOOTSTRAP_SERVERS [TOPIC_PREFIX]."""

import json
import sys

from confluent_kafka import Consumer

servers, prefix = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "retrofill."
consumer = Consumer(
    {
        "bootstrap.servers": servers,
        "group.id": "missed-deadlines-example",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",  # hides events that a relay left uncommitted
    }
)
consumer.subscribe([f"{prefix}deadline-missed"])
try:
    while True:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        event = json.loads(message.value())
        if event["type"] == "DeadlineMissed":
            print(event["pipeline"], event["alert"], event.get("interval_start"), event["due_at"], flush=True)  # noqa: T201
except KeyboardInterrupt:
    consumer.close()
