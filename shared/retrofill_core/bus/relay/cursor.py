"""The election of a relay, and its cursor: the number of the last batch that it published."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from retrofill.log import get_log
from retrofill_core.bus.clients import client_config, is_fatal, reader
from retrofill_core.bus.poller import CALL_SECONDS, Calls, Member, raise_refusals
from retrofill_core.contract.topics import Service
from retrofill_core.settings import Settings

KAFKA_SECONDS = 10.0
# An empty fetch reports the end of a topic, so it must not wait for new messages.
FETCH_WAIT_MS = 10
# The owner of this partition is the relay. Others, which somebody added, are never used.
CURSOR_PARTITION = 0
CURSOR_KEY = b"cursor"
# The epoch of the last relay to take over, on the same topic.
TAKEN_KEY = b"taken"


def read_end(settings: Settings, topic: str, client_id: str) -> int:
    """The next offset of the cursor topic. Raises ``KafkaException``."""
    with _reading(settings, client_id) as consumer:
        return consumer.get_watermark_offsets(TopicPartition(topic, CURSOR_PARTITION), timeout=KAFKA_SECONDS)[1]


def read_cursor(settings: Settings, topic: str, client_id: str, mark: bytes) -> Marks:
    """The marks before ``mark``, ``read_committed``; 0 for a missing value. Raises ``KafkaException``."""
    with _reading(settings, client_id) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, CURSOR_PARTITION), timeout=KAFKA_SECONDS)
        back = 100
        while True:
            start = max(low, high - back)
            found = marks_before(consumer, TopicPartition(topic, CURSOR_PARTITION, start), mark)
            if (found.cursor and found.taken) or start == low:
                return found
            back *= 10


@dataclass(frozen=True)
class Marks:
    """A cursor topic's values: the last published batch, and the greatest epoch of a relay.

    The relay of an old primary may come after that of its successor.
    """

    cursor: int
    taken: int


def read_marks(settings: Settings, topics: Iterable[str], client_id: str) -> dict[str, Marks]:
    """Marks by topic, as of the call; 0 for a missing value. Raises ``KafkaException``.

    A topic that may not be read is left out. Topics are read at once: a fetch that waits for one
    would delay the next.
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
                    marks[topic] = Marks(last.get(CURSOR_KEY, 0), last.get(TAKEN_KEY, 0))
            back *= 10
        return marks


def _bounds(consumer: Consumer, topic: str) -> tuple[int, int] | None:
    """Low and high watermark; ``None`` where the topic may not be read."""
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, CURSOR_PARTITION), timeout=KAFKA_SECONDS)
    except KafkaException as e:
        if e.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        return None


def _last_values(consumer: Consumer, starts: Mapping[str, int]) -> dict[str, dict[bytes, int]]:
    """By topic, the greatest value of each key, from its start offset to its end."""
    consumer.assign([TopicPartition(topic, CURSOR_PARTITION, start) for topic, start in starts.items()])
    last: dict[str, dict[bytes, int]] = {topic: {} for topic in starts}
    unread = set(starts)
    while unread and (message := consumer.poll(KAFKA_SECONDS)) is not None:
        error, topic = message.error(), message.topic() or ""
        if error is None:
            key = message.key() or b""
            last[topic][key] = max(last[topic].get(key, 0), int(message.value() or 0))
        elif error.code() == KafkaError._PARTITION_EOF:
            unread.discard(topic)
        else:
            raise KafkaException(error)
    if unread:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return last


def marks_before(consumer: Consumer, start: TopicPartition, mark: bytes) -> Marks:
    """The marks from ``start`` up to ``mark``.

    Raises ``KafkaException``, also where the mark does not arrive in time.
    """
    consumer.assign([start])
    found = Marks(0, 0)
    until = time.monotonic() + KAFKA_SECONDS
    while (message := consumer.poll(max(0.0, until - time.monotonic()))) is not None:
        error = message.error()
        if error is None:
            value = message.value() or b"0"
            if message.key() == CURSOR_KEY:
                found = replace(found, cursor=int(value))
            elif value == mark:
                return found
            elif message.key() == TAKEN_KEY:
                found = replace(found, taken=max(found.taken, int(value)))
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _reading(settings: Settings, client_id: str) -> closing[Consumer]:
    return closing(reader(settings, client_id, **{"fetch.wait.max.ms": FETCH_WAIT_MS}))


log = get_log(__name__)
# How long a request to commit or to stop may go unnoticed.
POLL_SECONDS = 0.25


class Membership(threading.Thread):
    """``assigned`` is set while this instance is the relay, ``changed`` on every change."""

    def __init__(self, settings: Settings, service: Service, instance: str, changed: threading.Event) -> None:
        super().__init__(name="relay-membership", daemon=True)
        self._topic = service.cursor_topic(settings.topic_prefix)
        self._changed = changed
        self._stopping = threading.Event()
        self._calls = Calls()
        self.assigned = threading.Event()
        self._member = Member(
            client_config(
                settings,
                f"{instance}-relay",
                **{
                    "group.id": service.relay_id(settings.topic_prefix),
                    "group.protocol": "consumer",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "latest",
                },
            ),
            [self._topic],
            self._on_assign,
            self._on_revoke,
        )

    def run(self) -> None:
        """Poll until stopped."""
        while not self._stopping.is_set():
            self._calls.run_pending()
            message = self._member.poll(POLL_SECONDS)
            if message is not None and (error := message.error()) is not None:
                log.debug("relay_membership", error=error.str())
                if is_fatal(error):
                    self._member.replace(error)
                    self._lose()
        self._member.consumer.close()

    def confirm(self, offset: int) -> None:
        """Commit ``offset``. Raises ``KafkaException`` if the partition is no longer ours."""
        offsets = [TopicPartition(self._topic, CURSOR_PARTITION, offset)]
        reply = self._calls.submit(lambda: self._member.consumer.commit(offsets=offsets, asynchronous=False))
        raise_refusals(reply.result(CALL_SECONDS))

    def stop(self) -> None:
        """Leave the group and end the thread."""
        self._stopping.set()
        self.join(timeout=10)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        # Only the membership counts; another consumer reads the cursor.
        consumer.pause(partitions)
        if _has_cursor(partitions):
            self.assigned.set()
            self._changed.set()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        if _has_cursor(partitions):
            self._lose()

    def _lose(self) -> None:
        self.assigned.clear()
        self._changed.set()


def _has_cursor(partitions: Iterable[TopicPartition]) -> bool:
    return any(each.partition == CURSOR_PARTITION for each in partitions)
