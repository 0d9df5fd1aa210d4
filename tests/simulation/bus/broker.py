"""The broker: partitions with transaction markers, and transactional ids with epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from retrofill_core.contract.topics import Topic, partition_of
from tests.simulation.memory.turns import Turns

Headers = list[tuple[str, bytes | None]]
TRANSACTION_SECONDS = 60.0


@dataclass
class Transaction:
    """One transaction of a producer.

    Its end is decided atomically and reaches each partition a little later.
    """

    began: float
    state: str = "open"  # or: committed, aborted
    partitions: set[tuple[str, int]] = field(default_factory=set)
    marked: set[tuple[str, int]] = field(default_factory=set)

    @property
    def over(self) -> bool:
        """Whether every partition has the end marker."""
        return self.state != "open" and self.marked == self.partitions


@dataclass(frozen=True)
class Entry:
    """One offset of a partition: a message, or a transaction's end marker if ``marker`` is set."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    transaction: Transaction | None
    marker: bool = False


def ce_id_of(entry: Entry) -> str:
    """The message's ``ce_id``."""
    return (dict(entry.headers).get("ce_id") or b"").decode()


class Partition:
    """One log."""

    def __init__(self, place: tuple[str, int]) -> None:
        self.place = place
        self.entries: list[Entry] = []
        # Everything before this offset is known to be decided, which is permanent.
        self._stable = 0

    @property
    def high_watermark(self) -> int:
        """The next offset to be written."""
        return len(self.entries)

    def last_stable(self) -> int:
        """The first undecided offset."""
        entries, end = self.entries, len(self.entries)
        while self._stable < end:
            transaction = entries[self._stable].transaction
            if transaction is not None and self.place not in transaction.marked:
                break
            self._stable += 1
        return self._stable

    def next(self, position: int, *, committed: bool) -> int | None:
        """The next readable offset from ``position``, or ``None``."""
        end = self.last_stable() if committed else len(self.entries)
        for offset in range(position, end):
            entry = self.entries[offset]
            aborted = entry.transaction is not None and entry.transaction.state == "aborted"
            if not entry.marker and not (committed and aborted):
                return offset
        return None

    def end(self, *, committed: bool) -> int:
        """The end offset at this isolation level."""
        return self.last_stable() if committed else len(self.entries)


class Fence(Exception):
    """A newer producer uses the transactional id."""


@dataclass
class TransactionalId:
    """The coordinator's state for one transactional id."""

    epoch: int = -1
    current: Transaction | None = None
    last: Transaction | None = None


class Reader(Protocol):
    """A consumer. ``waits``: it is in a poll."""

    waits: bool

    def has_news(self) -> bool:
        """Whether a poll would return something."""


class Broker:
    """Topics and transactional ids. ``readers`` are woken when there may be something to read."""

    def __init__(self, turns: Turns, delay: Callable[[], float] = lambda: 0.0) -> None:
        self.turns = turns
        # Seconds until a partition receives a transaction's end marker.
        self.delay = delay
        # Whether the broker is unreachable.
        self.down = False
        # Changes values that services and drivers publish.
        self.spoil: Callable[[str, Headers, bytes | None], bytes | None] | None = None
        self.topics: dict[str, list[Partition]] = {}
        self.ids: dict[str, str] = {}
        self.transactional: dict[str, TransactionalId] = {}
        self.groups: dict[str, Any] = {}
        self.readers: list[Reader] = []
        # The error code with which a topic refuses a value, or ``None``.
        self.refuses: Callable[[str, bytes | None], int | None] = lambda topic, value: None
        # Topics that cannot store anything, not even the end of a transaction.
        self.stuck: set[str] = set()
        self.on_append: list[Callable[[str, int, Entry], None]] = []

    def create(self, topic: str, partitions: int) -> None:
        self.topics[topic] = [Partition((topic, p)) for p in range(partitions)]
        self.ids[topic] = f"id-of-{topic}"

    def add_partitions(self, topic: str, count: int) -> None:
        """Same as ``kafka-topics --alter``."""
        logs = self.topics[topic]
        logs += [Partition((topic, len(logs) + n)) for n in range(count)]

    def woken(self) -> None:
        """Wake the readers that now have something to read."""
        for reader in self.readers:
            if reader.waits and reader.has_news():
                self.turns.wake(reader)

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        *,
        partition: int | None = None,
        transaction: Transaction | None = None,
    ) -> tuple[int, int]:
        """Append a message; returns its partition and offset."""
        logs = self.topics[topic]
        if partition is None:
            partition = partition_of(key or b"", len(logs))
        if transaction is not None:
            transaction.partitions.add((topic, partition))
        if self.spoil is not None and (transaction is not None or topic == Topic.RUN_REPORTS):
            value = self.spoil(topic, headers, value)
        entry = Entry(key, value, headers, int(self.turns.now * 1000), transaction)
        logs[partition].entries.append(entry)
        for hook in self.on_append:
            hook(topic, partition, entry)
        self.woken()
        return partition, len(logs[partition].entries) - 1

    # transactions

    def fence(self, id: str) -> None:
        """Abort the former producer's open transaction and bump the epoch."""
        state = self.transactional.setdefault(id, TransactionalId())
        if state.current is not None:
            self._end(state, "aborted")
        state.epoch += 1

    def busy(self, id: str) -> bool:
        """Whether some partitions lack the last end marker. The next transaction must wait."""
        last = self.transactional[id].last
        return last is not None and not last.over

    def begin(self, id: str, epoch: int) -> Transaction:
        """The epoch's transaction; its first message starts it. Raises ``Fence``."""
        state = self._checked(id, epoch)
        if state.current is None:
            state.current = Transaction(self.turns.now)
        return state.current

    def end(self, id: str, epoch: int, how: str) -> None:
        """Commit or abort. Raises ``Fence``."""
        self._end(self._checked(id, epoch), how)

    def expire(self) -> None:
        """Abort transactions that exceeded the timeout, and fence their producers."""
        if self.down:
            return
        for id, state in self.transactional.items():
            if state.current is not None and self.turns.now - state.current.began > TRANSACTION_SECONDS:
                self.fence(id)

    def _checked(self, id: str, epoch: int) -> TransactionalId:
        state = self.transactional[id]
        if state.epoch != epoch:
            raise Fence(f"{id}: epoch {epoch} was fenced by {state.epoch}")
        return state

    def _end(self, state: TransactionalId, how: str) -> None:
        transaction, state.current = state.current, None
        if transaction is None:
            return
        state.last = transaction
        transaction.state = how
        for place in sorted(transaction.partitions):
            self.turns.at(self.turns.now + self.delay(), lambda place=place: self._mark(transaction, place))  # type: ignore[misc]

    def _mark(self, transaction: Transaction, place: tuple[str, int]) -> None:
        if self.down or place[0] in self.stuck:
            self.turns.at(self.turns.now + 0.2, lambda: self._mark(transaction, place))
            return
        topic, partition = place
        transaction.marked.add(place)
        marker = Entry(None, None, [], int(self.turns.now * 1000), transaction, marker=True)
        self.topics[topic][partition].entries.append(marker)
        self.woken()

    def settled(self) -> bool:
        """Whether no transaction is open and every partition has all end markers."""
        return all(
            state.current is None and (state.last is None or state.last.over) for state in self.transactional.values()
        )

    def read(self, topic: str) -> list[tuple[int, int, Entry]]:
        """Everything that a ``read_committed`` subscriber sees: (partition, offset, message)."""
        return [
            (p, offset, entry)
            for p, log in enumerate(self.topics[topic])
            for offset, entry in enumerate(log.entries[: log.last_stable()])
            if not entry.marker and (entry.transaction is None or entry.transaction.state == "committed")
        ]
