"""What arrives at a service's worker, from the poller, the listener and the timers: one queue, so that nothing is polled."""

from __future__ import annotations

import queue
from dataclasses import dataclass

from retrofill.bus.envelope import Record


@dataclass(frozen=True)
class End:
    """The end of a partition was read: ``offset`` is the next one, behind any transaction marker."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Records:
    """Messages and ends, in the order of each partition."""

    items: tuple[Record | End, ...]


@dataclass(frozen=True)
class Assigned:
    """Kafka assigned these (topic, partition)."""

    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Revoked:
    """These are no longer ours."""

    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Positioned:
    """The shard now reads from the offsets that were asked for with ``ticket``; all that was read before is stale."""

    partition: int
    ticket: int


@dataclass(frozen=True)
class NotPositioned:
    """The client refused to read the shard from the offsets that were asked for with ``ticket``."""

    partition: int
    ticket: int
    detail: str


@dataclass(frozen=True)
class OutOfRange:
    """The stored offset is not in the topic any more (or not yet)."""

    topic: str
    partition: int
    detail: str


@dataclass(frozen=True)
class Notified:
    """Postgres notified. ``channel`` is empty after a reconnect: anything may have been missed."""

    channel: str
    payload: str


@dataclass(frozen=True)
class Wake:
    """Look at what is due."""


Item = Records | Assigned | Revoked | Positioned | NotPositioned | OutOfRange | Notified | Wake


class Inbox:
    """A queue of items with one reader."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        """Add an item; from any thread."""
        self._queue.put(item)

    def wait(self, seconds: float | None) -> list[Item]:
        """All items, waiting up to ``seconds`` (for ever with ``None``) for the first."""
        items: list[Item] = []
        try:
            items.append(self._queue.get(timeout=seconds))
            while True:
                items.append(self._queue.get_nowait())
        except queue.Empty:
            return items
