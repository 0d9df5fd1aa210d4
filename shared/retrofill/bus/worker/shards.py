"""The shards of one instance: those that were fixed at init, and the partitions that somebody added to a topic later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from retrofill.bus.worker.shard import Ownership, Shard

# Refused so often in a row: half a minute at most after the first time.
STANDS_STILL = 5


class Shards:
    """All shards that an instance may own (docs/decisions/added-partitions.md)."""

    def __init__(self, partitions: int, topics: Sequence[str]) -> None:
        self._topics = tuple(topics)
        self._fixed = {p: Shard(p, self._topics) for p in range(partitions)}
        self._added: dict[tuple[str, int], Shard] = {}

    def __getitem__(self, partition: int) -> Shard:
        """One of those that were fixed at init."""
        return self._fixed[partition]

    def __iter__(self) -> Iterator[Shard]:
        return chain(self._fixed.values(), list(self._added.values()))

    def at(self, topic: str, partition: int) -> Shard:
        """The shard that a partition of a topic belongs to: an added one is a shard of its own."""
        fixed = self._fixed.get(partition)
        if fixed is not None:
            return fixed
        return self._added.setdefault((topic, partition), Shard(partition, (topic,), added=True))

    def seeking(self, partition: int, ticket: int) -> Shard | None:
        """The one that waits to be positioned with this ticket, if it still does."""
        found = (s for s in self if (s.partition, s.ticket, s.ownership) == (partition, ticket, Ownership.SEEKING))
        return next(found, None)

    def troubles(self) -> dict[str, str | None]:
        """What keeps which shard from going on, one line in all; from any thread."""
        standing = [s for s in self if s.ownership is Ownership.STOPPED or s.failures >= STANDS_STILL]
        said = "; ".join(f"{s.topics[0] if s.added else 'shard'} {s.partition}: {s.trouble}" for s in standing)
        return {"shards": said or None}

    def owned(self) -> list[int]:
        """Those fixed at init that this instance owns; from any thread."""
        return [shard.partition for shard in self._fixed.values() if shard.ownership is Ownership.OWNED]
