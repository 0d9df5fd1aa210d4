"""What a service brings to the bus: how it handles messages and what it looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection

from retrofill.bus.envelope import Record
from retrofill.bus.transaction import Transaction
from retrofill.contract.base import Message


@dataclass(frozen=True)
class Received:
    """A message that can be read. ``message`` is ``None`` for a null value on a compacted topic.

    ``misplaced``: it belongs on another partition and is published again there, but is to be handled here as well.
    """

    record: Record
    key: str
    message: Message | None
    # The message's ce_id, or where it has none one derived from its place, the same for ever.
    ce_id: str
    misplaced: bool = False


@dataclass(frozen=True)
class Hold:
    """Nothing of a topic from ``offset`` on is handled for ``seconds``."""

    offset: int
    seconds: float


class Handler(Protocol):
    """One service. All methods are called from one thread; any exception is classified by ``bus.faults``."""

    def admit(self, received: Sequence[Received]) -> Mapping[str, Hold]:
        """Before the transaction: what has to wait, by topic. May read Postgres and Kafka and prepare what takes long."""

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """Decide on a batch and apply it. May be called again with the same messages after a rollback."""

    def check(self, tx: Transaction, keys: Sequence[str]) -> None:
        """Decide from the rows alone, for keys that ``group`` put together. ``tx.schedule_check`` says when to check again."""

    def group(self, keys: Sequence[str]) -> Sequence[Sequence[str]]:
        """Keys that are due, in the order in which to check them; each group shares a transaction.

        The keys of a refused group are checked again one by one.
        """

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:
        """What to look at when a shard is taken over: keys and seconds from now."""

    def lost(self, partition: int) -> None:
        """The shard is somebody else's now."""

    def notified(self, channel: str, payload: str, partitions: Sequence[int]) -> Mapping[int, Mapping[str, float]]:
        """What a notification makes this owner of ``partitions`` look at: by partition, keys and seconds.

        ``channel`` is empty after a reconnect: notifications may have been missed.
        """

    def read_to(self, partition: int, ends: Mapping[str, int]) -> None:
        """All messages of the shard's topics before these offsets have been handled."""

    def close(self) -> None:
        """The service stops."""


class QuietHandler:
    """Defaults for what a service does not need."""

    def admit(self, received: Sequence[Received]) -> Mapping[str, Hold]:
        """Nothing waits."""
        return {}

    def check(self, tx: Transaction, keys: Sequence[str]) -> None:
        """Nothing to check."""

    def group(self, keys: Sequence[str]) -> Sequence[Sequence[str]]:
        """Each in a transaction of its own."""
        return [[key] for key in keys]

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:
        """Nothing to look at."""
        return {}

    def lost(self, partition: int) -> None:
        """Nothing is kept."""

    def notified(self, channel: str, payload: str, partitions: Sequence[int]) -> Mapping[int, Mapping[str, float]]:
        """Nothing is listened to."""
        return {}

    def read_to(self, partition: int, ends: Mapping[str, int]) -> None:
        """Nothing waits for an end."""

    def close(self) -> None:
        """Nothing to close."""
