"""The worker's inbox: one queue for everything that wakes the worker."""

from __future__ import annotations

import queue
from dataclasses import dataclass

from retrofill_core.bus.envelope import Record


@dataclass(frozen=True)
class End:
    """The end of a partition was read; ``offset`` is the next one, past any transaction markers."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Records:
    """Messages and ends, in the order of each partition."""

    items: tuple[Record | End, ...]


@dataclass(frozen=True)
class Assigned:
    """Kafka assigned these (topic, partition) pairs."""

    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Revoked:
    """Kafka revoked these (topic, partition) pairs."""

    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Positioned:
    """The shard is now read from the offsets requested with ``ticket``; earlier reads are stale."""

    partition: int
    ticket: int


@dataclass(frozen=True)
class NotPositioned:
    """The client refused to read the shard from the offsets requested with ``ticket``."""

    partition: int
    ticket: int
    detail: str


@dataclass(frozen=True)
class OutOfRange:
    """The stored offset is no longer in the topic, or not yet."""

    topic: str
    partition: int
    detail: str


@dataclass(frozen=True)
class Notified:
    """A Postgres notification. ``channel`` is empty after a reconnect: any may have been missed."""

    channel: str
    payload: str


@dataclass(frozen=True)
class Wake:
    """Nothing arrived: run due work, or stop."""


Item = Records | Assigned | Revoked | Positioned | NotPositioned | OutOfRange | Notified | Wake


class Inbox:
    """A queue with a single reader."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        """Add an item; from any thread."""
        self._queue.put(item)

    def wait(self, seconds: float | None) -> list[Item]:
        """All queued items; waits up to ``seconds`` (``None``: without limit) for the first."""
        items: list[Item] = []
        try:
            items.append(self._queue.get(timeout=seconds))
            while True:
                items.append(self._queue.get_nowait())
        except queue.Empty:
            return items
