"""The cursor topic of a relay: its last committed record says which batch was published last."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from retrofill.bus.clients import reader
from retrofill.settings import Settings

log = structlog.get_logger(__name__)
KAFKA_SECONDS = 10.0
# The end of a topic is told by a fetch that found nothing: it must not wait for something to come.
FETCH_WAIT_MS = 10
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
    """Of each topic that may be read, as of where it ended when this began; 0 for what is not there. Raises ``KafkaException``.

    All at once: a fetch that waits for one topic would keep the next one waiting.
    """
    with _reading(settings, client_id) as consumer:
        bounds = {topic: found for topic in topics if (found := _bounds(consumer, topic)) is not None}
        marks: dict[str, Marks] = {}
        back = 100
        while left := bounds.keys() - marks.keys():
            starts = {topic: max(low, high - back) for topic, (low, high) in bounds.items() if topic in left}
            values = _last_values(consumer, starts)
            for topic, start in starts.items():
                last = values[topic]
                if last.keys() >= {CURSOR_KEY, TAKEN_KEY} or start == bounds[topic][0]:
                    marks[topic] = Marks(int(last.get(CURSOR_KEY, 0)), int(last.get(TAKEN_KEY, 0)))
            back *= 10
        return marks


def _bounds(consumer: Consumer, topic: str) -> tuple[int, int] | None:
    """The first offset and the end of a topic's partition; ``None`` where it may not be read."""
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=KAFKA_SECONDS)
    except KafkaException as e:
        if e.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        log.warning("cursor_not_readable", topic=topic, what_to_do="grant the right to read it: 'retrofill init' does")
        return None


def _last_values(consumer: Consumer, starts: Mapping[str, int]) -> dict[str, dict[bytes, bytes]]:
    """By topic, the last value of each key from its start to its end."""
    consumer.assign([TopicPartition(topic, 0, start) for topic, start in starts.items()])
    last: dict[str, dict[bytes, bytes]] = {topic: {} for topic in starts}
    unread = set(starts)
    while unread and (message := consumer.poll(KAFKA_SECONDS)) is not None:
        error, topic = message.error(), message.topic() or ""
        if error is None:
            last[topic][message.key() or b""] = message.value() or b"0"
        elif error.code() == KafkaError._PARTITION_EOF:
            unread.discard(topic)
        else:
            raise KafkaException(error)
    if unread:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return last


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
        self._consumer = reader(settings, client_id, **{"fetch.wait.max.ms": FETCH_WAIT_MS})

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
