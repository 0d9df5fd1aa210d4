"""A fake ``confluent_kafka.Producer``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from retrofill_core.contract.topics import ANY
from tests.simulation.bus.broker import Fence
from tests.simulation.bus.connections import Connections, refused


class FakeProducer:
    """A producer, with or without a transactional id."""

    def __init__(self, connections: Connections, config: dict[str, Any]) -> None:
        self._c = connections
        self._broker = connections.broker
        self._id = config.get("transactional.id")
        self._epoch = -1
        self._waiting: list[tuple[str, bytes | None, bytes | None, Any, int | None, Any]] = []
        # The error code after which the transaction can only be aborted.
        self._failed: int | None = None

    def init_transactions(self, timeout: float) -> None:
        """Fence the previous producer."""
        self._c.step("init_transactions")
        self._broker.fence(str(self._id))
        self._epoch = self._broker.transactional[str(self._id)].epoch
        self._wait_for_markers(timeout)

    def _wait_for_markers(self, timeout: float) -> None:
        until = self._c.scheduler.now + timeout
        while self._broker.busy(str(self._id)):
            if self._c.scheduler.now > until:
                raise refused(KafkaError._TIMED_OUT)
            self._c.scheduler.wait(object(), 0.02)

    def begin_transaction(self) -> None:
        """Local only: the broker does not know of the transaction yet."""

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = ANY,
        headers: Iterable[tuple[str, str | bytes | None]] = (),
        on_delivery: Callable[[KafkaError | None, Any], None] = lambda *_: None,
    ) -> None:
        """Queue a message."""
        plain = [(name, raw.encode() if isinstance(raw, str) else raw) for name, raw in headers]
        self._waiting.append((topic, key, value, plain, None if partition == ANY else partition, on_delivery))

    def poll(self, timeout: float = 0) -> int:
        """Send queued messages."""
        return self.flush(timeout)

    def flush(self, timeout: float = 0) -> int:
        """Send queued messages; returns how many were not sent."""
        until = self._c.scheduler.now + timeout
        kept: list[Any] = []
        while self._waiting or kept:
            if not self._waiting:
                # A partition that cannot store is part of the transaction all the same.
                self._waiting, kept = kept, []
                if not self._wait_to_store(until):
                    return len(self._waiting)
            try:
                self._c.step("produce")
                if self._id is not None:
                    self._wait_for_markers(timeout)
                transaction = None if self._id is None else self._broker.begin(str(self._id), self._epoch)
            except (Fence, KafkaException):
                self._waiting = kept + self._waiting
                return len(self._waiting)
            if not self._waiting:
                continue  # another thread has sent it
            topic, key, value, headers, partition, fields = message = self._waiting.pop(0)
            if topic in self._broker.stuck:
                if transaction is not None:
                    transaction.partitions.add((topic, partition or 0))
                kept.append(message)
                continue
            if (code := self._broker.refuses(topic, value)) is not None:
                # Like the broker, refuse all messages that were sent together.
                self._failed = code
                refused = [fields, *(each[-1] for each in self._waiting if each[0] == topic)]
                self._waiting, kept = [], []
                for each in refused:
                    each(KafkaError(code), None)
                return 0
            self._broker.append(topic, key, value, headers, partition=partition, transaction=transaction)
            fields(None, None)
        return 0

    def _wait_to_store(self, until: float) -> bool:
        """Wait until a topic of the queue stores messages; returns whether one does."""
        while all(each[0] in self._broker.stuck for each in self._waiting):
            if self._c.scheduler.now >= until:
                return False
            self._c.scheduler.wait(object(), 0.2)
        return True

    def list_topics(self, topic: str, timeout: float) -> Any:
        """Metadata without an error."""
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def commit_transaction(self, timeout: float) -> None:
        """Commit. The reply may be lost although the commit took effect."""
        self._c.step("commit_transaction")
        if self._waiting:
            raise refused(KafkaError._TIMED_OUT)
        if self._failed is not None:
            raise KafkaException(KafkaError(self._failed, "the transaction has failed", txn_requires_abort=True))
        try:
            self._broker.end(str(self._id), self._epoch, "committed")
        except Fence:
            raise refused(KafkaError._FENCED) from None
        self._c.step("transaction committed")
        if self._c.scheduler.random.random() < getattr(self._c.process, "lost_answers", 0.0):
            raise refused(KafkaError._TIMED_OUT)

    def abort_transaction(self, timeout: float) -> None:
        self._c.step("abort_transaction")
        self._waiting = []
        self._failed = None
        try:
            self._broker.end(str(self._id), self._epoch, "aborted")
        except Fence:
            raise refused(KafkaError._FENCED) from None
