"""Members of consumer groups: one that joins again where librdkafka gives up, and the poller of a service's topics.

The poller owns its consumer in a thread that only polls and pauses, so ``poll`` is never late. Others queue calls for it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import methodcaller
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from retrofill.log import get_log
from retrofill_core.bus.clients import POLL_SECONDS, client_config, is_fatal
from retrofill_core.bus.envelope import BAD_NAME, Record, read_headers
from retrofill_core.bus.inbox import Assigned, End, Inbox, Item, NotPositioned, OutOfRange, Positioned, Records, Revoked
from retrofill_core.contract.topics import Service
from retrofill_core.settings import Settings

log = get_log(__name__)
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
OnPartitions = Callable[[Consumer, list[TopicPartition]], None]


class Member:
    """A consumer that subscribes to topics, for one thread.

    A heartbeat that the coordinator refuses, such as for a missing right or an error that librdkafka does not know,
    ends a consumer for good: it stays silent even when the coordinator accepts heartbeats again. Replace it then.
    """

    def __init__(
        self, config: Mapping[str, Any], topics: Sequence[str], on_assign: OnPartitions, on_revoke: OnPartitions
    ) -> None:
        self._config = dict(config)
        self._topics = list(topics)
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self.consumer = Consumer(self._config)
        self._join_at: float | None = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    def poll(self, seconds: float) -> Message | None:
        """The next message or error. Joins the group first, once it is time to."""
        if self._join_at is not None and time.monotonic() >= self._join_at:
            self._join_at = None
            self.consumer.subscribe(
                self._topics, on_assign=self._assigned, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        return self.consumer.poll(seconds)

    def replace(self, error: KafkaError) -> None:
        """Take another consumer, which joins after a pause that grows until one is assigned something.

        The caller has lost all partitions, whether ``on_revoke`` is called or not.
        """
        log.error("kafka_consumer_failed", error=error.str(), joins_again_in_seconds=self._pause)
        self.consumer.close()
        self.consumer = Consumer(self._config)
        self._join_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, MAX_PAUSE_SECONDS)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._pause = FIRST_PAUSE_SECONDS
        self._on_assign(consumer, partitions)


T = TypeVar("T")
CALL_SECONDS = 20.0


class Calls:
    """A queue of calls, run in order by the thread that calls ``run_pending``."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Callable[[], object], Future[object]]] = SimpleQueue()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue ``call``; the future gets its result or exception."""
        future: Future[T] = Future()
        self._waiting.put((call, future))  # type: ignore[arg-type]  # the queue forgets what each call returns
        return future

    def run_pending(self) -> None:
        """Run the queued calls."""
        while True:
            try:
                call, future = self._waiting.get_nowait()
            except Empty:
                return
            try:
                future.set_result(call())
            except Exception as e:  # noqa: BLE001 - it belongs to the caller of ``submit``
                future.set_exception(e)


POLL_MESSAGES = 1000
# Handed over but not yet handled, over all partitions; each may always have a few large messages.
BUFFERED_BYTES = 64_000_000
MIN_PARTITION_BYTES = 4_000_000
CLIENT_BYTES = 16_000_000


@dataclass(frozen=True)
class Rewind:
    """Read shard ``partition`` from ``offsets`` (by topic).

    Answered by ``Positioned`` or ``NotPositioned`` with ``ticket``; refused unless the partition of
    topic ``anchor`` is assigned to us.
    """

    partition: int
    anchor: str
    offsets: dict[str, int]
    ticket: int


class Poller(threading.Thread):
    """Polls one service's topics. Partitions stay paused until their shard is taken over."""

    def __init__(self, settings: Settings, service: Service, instance: str, inbox: Inbox) -> None:
        super().__init__(name="poller", daemon=True)
        self._prefix = settings.topic_prefix
        self._inbox = inbox
        self._calls = Calls()
        self._stopping = threading.Event()
        # Messages handed over but not yet handled, and their bytes, by (topic, partition).
        # A partition over the limit is paused.
        self._outstanding: Counter[tuple[str, int]] = Counter()
        self._bytes: Counter[tuple[str, int]] = Counter()
        self._throttled: set[tuple[str, int]] = set()
        # What the group assigned, by full topic name. The client may read more: all topics of
        # a shard whose first topic is assigned to us.
        self._assigned: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._limit = settings.batch_messages * 4
        self._member = Member(
            client_config(
                settings,
                instance,
                **{
                    "group.id": service.group(self._prefix),
                    "group.protocol": "consumer",
                    "group.remote.assignor": "range",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    # Offsets are in Postgres; one that is out of range stops the shard.
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 500,
                    # Bounds what the client prefetches, in addition to what it handed over.
                    "queued.max.messages.kbytes": CLIENT_BYTES // 1000,
                    "fetch.max.bytes": CLIENT_BYTES,
                    "fetch.error.backoff.ms": 50,
                    # Other timeouts are set on the broker for the consumer protocol, but not this one.
                    "max.poll.interval.ms": 300_000,
                },
            ),
            [self._prefix + topic for topic in service.reads],
            self._on_assign,
            self._on_revoke,
        )

    # Called from the worker's thread.

    def rewind(self, command: Rewind) -> None:
        """Request a shard to be read from given offsets."""
        self._calls.submit(lambda: self._rewind(command))

    def release(self, partition: int, topics: Sequence[str]) -> None:
        """Stop reading ``partition`` of these topics until the next rewind."""
        self._calls.submit(lambda: self._release(partition, topics))

    def handled(self, items: Iterable[Record]) -> None:
        """Count messages as handled, or dropped; their partitions may be resumed."""
        with self._lock:
            for record in items:
                self._outstanding[record.topic, record.partition] -= 1
                self._bytes[record.topic, record.partition] -= record.size

    def commit(self, partition: int, offsets: dict[str, int], *, wait: bool) -> None:
        """Commit offsets to Kafka; with ``wait``, raises ``KafkaException`` if refused."""
        partitions = [TopicPartition(self._prefix + topic, partition, offset) for topic, offset in offsets.items()]
        # The binding blocks a commit while another thread polls, so the poller does it.
        if wait:
            reply = self._calls.submit(lambda: self._consumer.commit(offsets=partitions, asynchronous=False))
            raise_refusals(reply.result(CALL_SECONDS))
        else:
            self._calls.submit(lambda: self._consumer.commit(offsets=partitions, asynchronous=True))

    def stop(self) -> None:
        """Leave the group and end the thread."""
        self._stopping.set()
        self.join(timeout=15)

    # Called from this thread.

    def run(self) -> None:
        """Poll until stopped."""
        while not self._stopping.is_set():
            self._calls.run_pending()
            self._throttle()
            first = self._member.poll(POLL_SECONDS)
            if first is not None:
                failed = self._hand_over([first, *self._consumer.consume(POLL_MESSAGES, 0)])
                if failed is not None:
                    self._join_again(failed)
        self._consumer.close()

    @property
    def _consumer(self) -> Consumer:
        return self._member.consumer

    def _join_again(self, error: KafkaError) -> None:
        """Give everything up, as others are assigned it, and join the group as a new member."""
        self._member.replace(error)
        self._lose([TopicPartition(topic, partition) for topic, partition in self._assigned])

    def _hand_over(self, messages: list[Message]) -> KafkaError | None:
        """Hand over what was polled; returns the error that ended the consumer, if there is one."""
        failed: KafkaError | None = None
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
            elif is_fatal(error):
                failed = error
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
        return failed

    def _rewind(self, command: Rewind) -> None:
        targets = [TopicPartition(self._prefix + t, command.partition, o) for t, o in command.offsets.items()]
        plain = [TopicPartition(target.topic, target.partition) for target in targets]
        try:
            if (self._prefix + command.anchor, command.partition) not in self._assigned:
                raise KafkaException(KafkaError(KafkaError._STATE, "the shard was revoked in the meantime"))
            # Not a seek: it is lost while the first fetch of a new assignment looks up its offset.
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
            # Messages that still arrive are stale; the worker drops them.
            log.info("release_refused", shard=partition, error=str(e))

    def _held(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of ``partitions`` that the client reads, regardless of their assignment."""
        held = {(p.topic, p.partition) for p in self._consumer.assignment()}
        return [p for p in partitions if (p.topic, p.partition) in held]

    def _throttle(self) -> None:
        with self._lock:
            max_bytes = max(BUFFERED_BYTES // max(1, len(self._assigned)), MIN_PARTITION_BYTES)
            full = {key for key, n in self._outstanding.items() if n > self._limit or self._bytes[key] > max_bytes}
            full -= self._throttled
            empty = {
                key
                for key in self._throttled
                if self._outstanding[key] < self._limit // 2 and self._bytes[key] <= max_bytes // 2
            }
            self._throttled = (self._throttled | full) - empty
        try:
            if full:
                self._consumer.pause([TopicPartition(self._prefix + t, p) for t, p in full])
            if empty:
                self._consumer.resume([TopicPartition(self._prefix + t, p) for t, p in empty])
        except KafkaException as e:
            # Revoked in the meantime; the next owner reads it.
            log.debug("throttle_refused", error=str(e))

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The offsets are in Postgres: fetch nothing until the shard is taken over.
        self._assigned |= {(p.topic, p.partition) for p in partitions}
        # A partition may already be read, for a shard whose first topic was assigned earlier.
        held = {(p.topic, p.partition) for p in self._held(partitions)}
        new = [p for p in partitions if (p.topic, p.partition) not in held]
        for partition in new:
            partition.offset = OFFSET_BEGINNING
        consumer.incremental_assign(new)
        if new:
            consumer.pause(new)
        self._inbox.put(Assigned(self._plain(partitions)))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(self._held(partitions))
        self._lose(partitions)

    def _lose(self, partitions: list[TopicPartition]) -> None:
        self._assigned -= {(p.topic, p.partition) for p in partitions}
        lost = self._plain(partitions)
        with self._lock:
            self._throttled.difference_update(lost)
        self._inbox.put(Revoked(lost))

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
    """The headers, and whether a name is not UTF-8 (then no headers)."""
    try:
        given = cast("list[tuple[str, str | bytes | None]]", _get_headers(message) or [])
    except SystemError:
        # For such a name, the binding returns a broken list and leaves an exception set.
        return (), True
    return tuple((name, _as_bytes(value)) for name, value in given), False


# Not ``message.headers()``: Python may skip the exception check for that call. Then the exception
# surfaces later, anywhere, or the broken list is read.
_get_headers = methodcaller("headers")


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
