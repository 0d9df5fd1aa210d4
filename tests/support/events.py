"""Messages as a subscriber sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


@dataclass(frozen=True)
class Event:
    """One message as a subscriber sees it."""

    partition: int
    offset: int
    key: str
    body: dict[str, Any]
    headers: dict[str, str]
    value: bytes


def follow(consumer: Consumer, topic: str, partitions: int) -> Iterator[Event | None]:
    """All messages of a topic, also those to come; ``None`` at each end and after a second without."""
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    while True:
        message = consumer.poll(1)
        if message is None or _is_end(message):
            yield None
        else:
            yield _event(message)


def read_to_end(consumer: Consumer, topic: str, partitions: int) -> Iterator[Event]:
    """All messages of a topic up to its current end, in each partition's order."""
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    open_ends = set(range(partitions))
    while open_ends:
        message = consumer.poll(20)
        assert message is not None, f"{topic} cannot be read"
        if _is_end(message):
            open_ends.discard(message.partition())
        else:
            yield _event(message)


def _is_end(message: Message) -> bool:
    """Whether the message stands for the end of its partition. Fails for any other error."""
    error = message.error()
    assert error is None or error.code() == KafkaError._PARTITION_EOF, error
    return error is not None


def _event(message: Message) -> Event:
    value = message.value() or b""
    try:
        body = json.loads(value) if value else {}
    except ValueError:
        body = {}
    key = (message.key() or b"").decode("utf-8", "replace")
    body = body if isinstance(body, dict) else {}
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return Event(partition, offset, key, body, text_headers(message), value)


def text_headers(message: Message) -> dict[str, str]:
    """A message's headers as text."""
    raw = dict(message.headers() or ())
    return {
        name: value if isinstance(value, str) else (value or b"").decode("utf-8", "replace")
        for name, value in raw.items()
    }
