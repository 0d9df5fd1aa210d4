"""From a request to the first run that runs, with a warm pool of Spark drivers, beside a bare Spark Connect call."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.flights import User, user_with_spark
from benchmarks.support.kafka import ask, at_end
from retrofill.bus.clients import producer
from retrofill.bus.partitioning import partition_of
from retrofill.bus.topics import Topic
from retrofill.messages.backfills import BackfillRequested
from retrofill.settings import Settings

REPEATS = 15
WARM = 4
PARTITIONS = 4
_NOTHING = """
from retrofill import Pipeline

nothing = Pipeline("nothing", schedule="@daily", start="2013-01-01")

@nothing.task
def only(run):
    pass
"""


def started(settings: Settings, sender: Producer, n: int) -> float:
    """Seconds from publishing a request for one day to the reading of its ``RunStarted``."""
    id = f"bench-{uuid.uuid4().hex[:8]}"
    subscriber = at_end(settings, Topic.RUN_EVENTS, [partition_of(id, PARTITIONS)])
    subscriber.poll(5)  # the end of the partition: from now on it is fetched from
    day = f"2014-{1 + n // 28:02}-{1 + n % 28:02}"
    body = BackfillRequested.model_validate({"pipeline": "nothing", "from": day, "to": day})
    began = time.monotonic()
    ask(settings, sender, id, body)
    _wait_for(subscriber, id, "RunStarted")
    seconds = time.monotonic() - began
    # The driver is free again before the next one asks for it.
    _wait_for(subscriber, id, "RunSucceeded")
    subscriber.close()
    return seconds


def _wait_for(subscriber: Consumer, id: str, type: str) -> None:
    while True:
        message = subscriber.poll(60)
        assert message is not None, f"no {type}"
        if message.error() is None and message.key() == id.encode():
            event = json.loads(message.value() or b"{}")
            assert event["type"] != "RunFailed", event
            if event["type"] == type:
                return


def connect_call(remote: str) -> float:
    """Seconds of the smallest thing that one can ask Spark Connect for, in a session of its own."""
    from pyspark.sql import SparkSession

    began = time.monotonic()
    session = SparkSession.builder.remote(remote).create()
    session.range(1).count()
    seconds = time.monotonic() - began
    session.stop()
    return seconds


def run() -> Sequence[Figure]:
    """One after the other, each beside a call."""
    with user_with_spark(flights=False) as user:
        _apply(user)
        settings = user.settings()
        assert settings.spark_remote is not None
        sender = producer(settings, "bench")
        for n in range(WARM):
            started(settings, sender, n)
            connect_call(settings.spark_remote)
        ours, calls = [], []
        for n in range(REPEATS):
            ours.append(1000 * started(settings, sender, WARM + n))
            calls.append(1000 * connect_call(settings.spark_remote))
    above = [a - b for a, b in zip(ours, calls, strict=True)]
    return [
        figure("request to RunStarted", "ms", ours),
        figure("a bare Spark Connect call", "ms", calls),
        figure("above the bare call", "ms", above, at_most=250),
    ]


def _apply(user: User) -> None:
    path = user.home / "nothing.py"
    path.write_text(_NOTHING)
    user.run("pipelines", "apply", str(path))


BENCHMARK = Benchmark(
    "start",
    "a request for one day is published until its RunStarted is read read_committed, with warm drivers",
    "a new Spark Connect session that counts one row",
    "at most 250 ms above it",
    run,
)
