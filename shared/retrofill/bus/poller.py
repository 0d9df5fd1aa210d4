"""The thread that owns the consumer: it only polls, pauses and hands over, so that `poll` is always called."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import cast

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from retrofill.bus.calls import ANSWER_SECONDS, Calls
from retrofill.bus.clients import common_config
from retrofill.bus.envelope import BAD_NAME, Record, read_headers
from retrofill.bus.inbox import Assigned, End, Inbox, Item, NotPositioned, OutOfRange, Positioned, Records, Revoked
from retrofill.contract.topics import Service
from retrofill.settings import Settings

log = structlog.get_logger(__name__)
POLL_SECONDS = 0.25
POLL_MESSAGES = 1000
# Handed over and not yet handled, of all partitions; but one partition may always have a few of the largest messages.
BUFFERED_BYTES = 64_000_000
MIN_PARTITION_BYTES = 4_000_000
CLIENT_BYTES = 16_000_000


@dataclass(frozen=True)
class Rewind:
    """Read shard ``partition`` from these offsets by topic, and say ``Positioned`` or ``NotPositioned`` with the ticket.

    ``anchor`` is the topic whose partition has to be assigned to us.
    """

    partition: int
    anchor: str
    offsets: dict[str, int]
    ticket: int


class Poller(threading.Thread):
    """Polls one service's topics. Partitions stay paused until the worker has taken their shard over."""

    def __init__(self, settings: Settings, service: Service, instance: str, inbox: Inbox) -> None:
        super().__init__(name="poller", daemon=True)
        self._prefix = settings.topic_prefix
        self._service = service
        self._inbox = inbox
        self._calls = Calls()
        self._stopping = threading.Event()
        # Messages handed over and not yet handled, and their bytes, by (topic, partition): beyond a limit it is paused.
        self._outstanding: Counter[tuple[str, int]] = Counter()
        self._bytes: Counter[tuple[str, int]] = Counter()
        self._throttled: set[tuple[str, int]] = set()
        # What the group assigned, by full topic name. The client may read more: all topics of a shard whose first one is here.
        self._assigned: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._limit = settings.batch_messages * 4
        self._consumer = Consumer(
            {
                **common_config(settings, instance),
                "group.id": service.group(self._prefix),
                "group.protocol": "consumer",
                "group.remote.assignor": "range",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                # Never reset silently: the offsets are in Postgres, and one out of range stops the shard.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 500,
                # What the client holds beside what it handed over.
                "queued.max.messages.kbytes": CLIENT_BYTES // 1000,
                "fetch.max.bytes": CLIENT_BYTES,
                "fetch.error.backoff.ms": 50,
                # Set on the broker for the consumer protocol, but max.poll is the client's.
                "max.poll.interval.ms": 300_000,
            }
        )

    # from the worker's thread

    def rewind(self, command: Rewind) -> None:
        """Ask for a shard to be read from given offsets."""
        self._calls.ask(lambda: self._rewind(command))

    def release(self, partition: int, topics: Sequence[str]) -> None:
        """Read nothing of these topics' ``partition`` until the next rewind."""
        self._calls.ask(lambda: self._release(partition, topics))

    def handled(self, items: Iterable[Record]) -> None:
        """Messages that the worker is done with, whatever became of them."""
        with self._lock:
            for record in items:
                self._outstanding[record.topic, record.partition] -= 1
                self._bytes[record.topic, record.partition] -= record.size

    def commit(self, partition: int, offsets: dict[str, int], *, wait: bool) -> None:
        """Write Kafka's own committed offsets. With ``wait`` raises ``KafkaException`` where the coordinator refuses."""
        partitions = [TopicPartition(self._prefix + topic, partition, offset) for topic, offset in offsets.items()]
        # The binding lets nobody commit while another thread polls, so the poller does it.
        if wait:
            answer = self._calls.ask(lambda: self._consumer.commit(offsets=partitions, asynchronous=False))
            raise_refusals(answer.result(ANSWER_SECONDS))
        else:
            self._calls.ask(lambda: self._consumer.commit(offsets=partitions, asynchronous=True))

    def stop(self) -> None:
        """Leave the group and end the thread."""
        self._stopping.set()
        self.join(timeout=15)

    # the thread

    def run(self) -> None:
        """Poll until stopped."""
        topics = [self._prefix + topic for topic in self._service.reads]
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        while not self._stopping.is_set():
            self._calls.make()
            self._throttle()
            first = self._consumer.poll(POLL_SECONDS)
            if first is not None:
                self._hand_over([first, *self._consumer.consume(POLL_MESSAGES, 0)])
        self._consumer.close()

    def _hand_over(self, messages: list[Message]) -> None:
        items: list[Record | End] = []
        others: list[Item] = []
        for message in messages:
            error = message.error()
            topic = (message.topic() or "").removeprefix(self._prefix)
            partition = message.partition()
            if error is None:
                items.append(_record(topic, message))
            elif error.code() == KafkaError._PARTITION_EOF:
                assert partition is not None
                items.append(End(topic, partition, message.offset() or 0))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                others.append(OutOfRange(topic, -1 if partition is None else partition, error.str()))
            else:
                log.warning("kafka_error", error=error.str(), topic=topic, partition=partition)
        with self._lock:
            for record in (item for item in items if isinstance(item, Record)):
                self._outstanding[record.topic, record.partition] += 1
                self._bytes[record.topic, record.partition] += record.size
        if items:
            self._inbox.put(Records(tuple(items)))
        for other in others:
            self._inbox.put(other)

    def _rewind(self, command: Rewind) -> None:
        targets = [TopicPartition(self._prefix + t, command.partition, o) for t, o in command.offsets.items()]
        plain = [TopicPartition(target.topic, target.partition) for target in targets]
        try:
            if (self._prefix + command.anchor, command.partition) not in self._assigned:
                raise KafkaException(KafkaError(KafkaError._STATE, "the shard was revoked meanwhile"))
            # Not a seek: one that comes while the first fetch of a new assignment looks for its offset can be lost.
            if held := self._held(plain):
                self._consumer.incremental_unassign(held)
            self._consumer.incremental_assign(targets)
            self._consumer.resume(plain)
        except KafkaException as e:
            log.info("rewind_refused", shard=command.partition, error=str(e))
            self._inbox.put(NotPositioned(command.partition, command.ticket, str(e)))
            return
        with self._lock:
            self._throttled -= {(topic, command.partition) for topic in command.offsets}
        self._inbox.put(Positioned(command.partition, command.ticket))

    def _release(self, partition: int, topics: Sequence[str]) -> None:
        held = self._held([TopicPartition(self._prefix + topic, partition) for topic in topics])
        ours = [p for p in held if (p.topic, p.partition) in self._assigned]
        others = [p for p in held if (p.topic, p.partition) not in self._assigned]
        with self._lock:
            self._throttled -= set(self._plain(held))
        try:
            if ours:
                self._consumer.pause(ours)
            if others:
                self._consumer.incremental_unassign(others)
        except KafkaException as e:
            # What still comes is stale and dropped.
            log.info("release_refused", shard=partition, error=str(e))

    def _held(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of them that the client reads, whoever the group assigned them to."""
        held = {(p.topic, p.partition) for p in self._consumer.assignment()}
        return [p for p in partitions if (p.topic, p.partition) in held]

    def _throttle(self) -> None:
        with self._lock:
            most = max(BUFFERED_BYTES // max(1, len(self._assigned)), MIN_PARTITION_BYTES)
            full = {key for key, n in self._outstanding.items() if n > self._limit or self._bytes[key] > most}
            full -= self._throttled
            empty = {
                key
                for key in self._throttled
                if self._outstanding[key] < self._limit // 2 and self._bytes[key] <= most // 2
            }
            self._throttled = (self._throttled | full) - empty
        try:
            if full:
                self._consumer.pause([TopicPartition(self._prefix + t, p) for t, p in full])
            if empty:
                self._consumer.resume([TopicPartition(self._prefix + t, p) for t, p in empty])
        except KafkaException as e:
            # Revoked meanwhile: the next owner reads it.
            log.debug("throttle_refused", error=str(e))

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Where to read is in Postgres: nothing is fetched until the worker has taken the shard over.
        self._assigned |= {(p.topic, p.partition) for p in partitions}
        # What is read already, as part of a shard whose first topic came earlier, goes on.
        held = {(p.topic, p.partition) for p in self._held(partitions)}
        new = [p for p in partitions if (p.topic, p.partition) not in held]
        for partition in new:
            partition.offset = OFFSET_BEGINNING
        consumer.incremental_assign(new)
        if new:
            consumer.pause(new)
        self._inbox.put(Assigned(self._plain(partitions)))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned -= {(p.topic, p.partition) for p in partitions}
        consumer.incremental_unassign(self._held(partitions))
        with self._lock:
            for key in self._plain(partitions):
                self._throttled.discard(key)
        self._inbox.put(Revoked(self._plain(partitions)))

    def _plain(self, partitions: list[TopicPartition]) -> tuple[tuple[str, int], ...]:
        return tuple((p.topic.removeprefix(self._prefix), p.partition) for p in partitions)


def raise_refusals(answers: Iterable[TopicPartition] | None) -> None:
    """Raise ``KafkaException`` for the first partition of a commit that the coordinator refused."""
    for answer in answers or ():
        if answer.error is not None:
            raise KafkaException(answer.error)


def _record(topic: str, message: Message) -> Record:
    raw, bad_name = _headers(message)
    headers, bad = read_headers(raw)
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return Record(
        topic=topic,
        partition=partition,
        offset=offset,
        key=_as_bytes(message.key()),
        value=_as_bytes(message.value()),
        headers=headers,
        raw_headers=raw,
        timestamp_ms=message.timestamp()[1],
        bad_header=BAD_NAME if bad_name else bad,
    )


def _headers(message: Message) -> tuple[tuple[tuple[str, bytes | None], ...], bool]:
    """The headers, or none and true where a name is not UTF-8."""
    try:
        given = cast("list[tuple[str, str | bytes | None]]", _get_headers(message) or [])
    except SystemError:
        # The binding makes text of all names. Where one is no text, it returns a broken list and leaves an exception set.
        return (), True
    return tuple((name, _as_bytes(value)) for name, value in given), False


# Not `message.headers()`: Python may call that without looking for the exception, which then comes up anywhere later, or the
# broken list is read.
_get_headers = methodcaller("headers")


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
