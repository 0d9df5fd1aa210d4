"""Messages as a subscriber sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition


@dataclass(frozen=True)
class Event:
    """One message as a subscriber sees it."""

    partition: int
    offset: int
    key: str
    body: dict[str, Any]
    headers: dict[str, str]
    value: bytes


def read_to_end(consumer: Consumer, topic: str, partitions: int) -> Iterator[Event]:
    """All messages of a topic up to its current end, in each partition's order."""
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    open_ends = set(range(partitions))
    while open_ends:
        message = consumer.poll(20)
        assert message is not None, f"{topic} cannot be read"
        if message.error():
            assert message.error().code() == -191, message.error()  # the end of a partition
            open_ends.discard(message.partition())
            continue
        value = message.value() or b""
        headers = {name: (raw or b"").decode("utf-8", "replace") for name, raw in message.headers() or ()}
        try:
            body = json.loads(value) if value else {}
        except ValueError:
            body = {}
        key = (message.key() or b"").decode("utf-8", "replace")
        yield Event(message.partition(), message.offset(), key, body if isinstance(body, dict) else {}, headers, value)
