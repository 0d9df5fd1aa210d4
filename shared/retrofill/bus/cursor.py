"""The cursor topic of a relay: its last committed record says which batch was published last."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from retrofill.bus.clients import reader
from retrofill.settings import Settings

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
