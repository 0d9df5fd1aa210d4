"""The cursor topic of a relay: its last committed record says which batch was published last."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from retrofill.bus.clients import reader
from retrofill.settings import Settings

log = structlog.get_logger(__name__)
KAFKA_SECONDS = 10.0
CURSOR_KEY = b"cursor"
# Beside the cursor: the epoch of whoever took over last.
TAKEN_KEY = b"taken"


def read_end(settings: Settings, topic: str, client_id: str) -> int:
    """The next offset of the cursor topic. Raises ``KafkaException``."""
    with _reading(settings, client_id) as consumer:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=KAFKA_SECONDS)[1]


def read_cursor(settings: Settings, topic: str, client_id: str, mark: bytes | None) -> int:
    """The number of the last published batch, read committed up to ``mark``; 0 where nothing was published.

    Without a mark: up to where the topic ended when this began. Raises ``KafkaException``.
    """
    with _reading(settings, client_id) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=KAFKA_SECONDS)
        back = 100
        while True:
            start = max(low, high - back)
            found = last_cursor(consumer, TopicPartition(topic, 0, start), mark)
            if found is not None or start == low:
                return int(found or 0)
            back *= 10


@dataclass(frozen=True)
class Marks:
    """What a cursor topic says last: the number of the last published batch, and the epoch of who took over last."""

    cursor: int
    taken: int


def read_marks(settings: Settings, topics: Iterable[str], client_id: str) -> dict[str, Marks]:
    """Of each topic that may be read, as of where it ended when this began; 0 for what is not there. Raises ``KafkaException``."""
    found = {}
    with _reading(settings, client_id) as consumer:
        for topic in topics:
            try:
                found[topic] = _marks(consumer, topic)
            except KafkaException as e:
                if e.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise
                log.warning(
                    "cursor_not_readable", topic=topic, what_to_do="grant the right to read it: 'retrofill init' does"
                )
    return found


def _marks(consumer: Consumer, topic: str) -> Marks:
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=KAFKA_SECONDS)
    back = 100
    while True:
        start = max(low, high - back)
        found = _last_values(consumer, TopicPartition(topic, 0, start))
        if found.keys() >= {CURSOR_KEY, TAKEN_KEY} or start == low:
            return Marks(int(found.get(CURSOR_KEY, 0)), int(found.get(TAKEN_KEY, 0)))
        back *= 10


def _last_values(consumer: Consumer, start: TopicPartition) -> dict[bytes, bytes]:
    """The last value of each key from ``start`` to the end."""
    consumer.assign([start])
    last: dict[bytes, bytes] = {}
    while (message := consumer.poll(KAFKA_SECONDS)) is not None:
        error = message.error()
        if error is None:
            last[message.key() or b""] = message.value() or b"0"
        elif error.code() == KafkaError._PARTITION_EOF:
            return last
        else:
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def last_cursor(consumer: Consumer, start: TopicPartition, mark: bytes | None) -> bytes | None:
    """The last cursor from ``start`` to ``mark``, or to the end where there is none.

    Raises ``KafkaException``, also where the mark does not come.
    """
    consumer.assign([start])
    last: bytes | None = None
    until = time.monotonic() + KAFKA_SECONDS
    while (message := consumer.poll(max(0.0, until - time.monotonic()))) is not None:
        error = message.error()
        if error is None:
            if message.key() == CURSOR_KEY:
                last = message.value()
            elif mark is not None and message.value() == mark:
                return last
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif mark is None:
            return last
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


class _reading:
    """A consumer that is closed afterwards."""

    def __init__(self, settings: Settings, client_id: str) -> None:
        self._consumer = reader(settings, client_id)

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
