"""Resource a shard's owner remembers between checks: a few numbers per pipeline, all of them hints."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from retrofill_core.store.giving_way import Rank, SeatKind
from run_starter.sharing import Resource, Shortage

BACKFILL, PIPELINE = "b:", "p:"
# So long, slots and seats are left to a rival.
YIELD_SECONDS = 5.0
# And then not again for so long: it may be unable to use them.
ENOUGH_SECONDS = 60.0
# The check of the shard's leases and of what times out.
LEASES_KEY = "leases"
# The check of the shard's pipelines that have suspects.
SUSPECTS_KEY = "suspects"


def backfill_key(id: str) -> str:
    """The check of one backfill."""
    return f"{BACKFILL}{id}"


def pipeline_key(no: int) -> str:
    """The check whether a pipeline has a free slot, and which backfill gets it."""
    return f"{PIPELINE}{no}"


def slot_freed(no: int, shard: int) -> str:
    """The notification that a pipeline may have a free slot, from a shard that checks it itself."""
    return f"{no}/{shard}"


def suspect_ended(shard: int) -> str:
    """The notification that a Spark server may have another suspect, from a shard that checks its own."""
    return f"suspect/{shard}"


def key_in(payload: str) -> tuple[str, int] | None:
    """Resource to check because of such a notification, and its shard, or ``None`` for another one."""
    about, _, shard = payload.partition("/")
    if not shard.isdecimal() or not (about.isdecimal() or about == "suspect"):
        return None
    return SUSPECTS_KEY if about == "suspect" else pipeline_key(int(about)), int(shard)


def backfills_in(keys: Iterable[str]) -> list[str]:
    """The ids of the backfills among check keys."""
    return [key.removeprefix(BACKFILL) for key in keys if key.startswith(BACKFILL)]


def pipelines_in(keys: Iterable[str]) -> list[int]:
    """The numbers of the pipelines among check keys."""
    return [int(key.removeprefix(PIPELINE)) for key in keys if key.startswith(PIPELINE)]


@dataclass
class Memory:
    """The memory of one shard."""

    # Pipelines that have had running backfills in the shard.
    pipelines: set[int] = field(default_factory=set)
    # By pool: check keys that wait for a seat, the longest waiting first, and their first backfill.
    starving: dict[str, dict[str, Shortage]] = field(default_factory=dict)
    # Backfills with accepted runs that wait for a publisher, with their pipelines.
    to_publish: dict[str, int] = field(default_factory=dict)
    # Running backfills whose definitions cannot be read here, with their pipelines: they claim nothing.
    unreadable: dict[str, int] = field(default_factory=dict)
    # Check keys that wait for their turn to write something.
    to_write: set[str] = field(default_factory=set)
    # When what was first left to whom.
    left_to: dict[Resource, dict[Rank, float]] = field(default_factory=dict)
    # The shortages that were announced to other run-starters, and when.
    waits: dict[SeatKind, tuple[Rank, float]] = field(default_factory=dict)

    def starve(self, pool: str, keys: Mapping[str, Shortage]) -> None:
        self.starving.setdefault(pool, {}).update(keys)

    def check(self, keys: Collection[str]) -> None:
        """These are checked now, and wait for nothing any more."""
        self.to_write.difference_update(keys)
        for pool, waiting in list(self.starving.items()):
            for key in keys:
                waiting.pop(key, None)
            if not waiting:
                del self.starving[pool]

    def first(self, pool: str, count: int) -> list[str]:
        """The keys to check for a seat of a pool, or of each: so many by rank, and as many that wait longest.

        Otherwise those that cannot use what is free would hide the others.
        """
        pools = [self.starving.get(each, {}) for each in ([pool] if pool else self.starving)]
        by_rank = [key for waiting in pools for key in nsmallest(count, waiting, key=waiting.__getitem__)]
        return [*dict.fromkeys([*by_rank, *(key for waiting in pools for key in islice(waiting, count))])]

    def first_waiting(self, pool: str) -> dict[SeatKind, Rank]:
        """Who waits for seats of a pool, the first for each kind: one that no host may offer hides no other."""
        found: dict[SeatKind, Rank] = {}
        for submits, rank in sorted(self.starving.get(pool, {}).values()):
            found.setdefault(SeatKind(pool, submits), rank)
        return found

    def exhausted(self, what: Resource) -> frozenset[Rank]:
        """Those who did not take it while it was left to them."""
        now, left_to = time.monotonic(), self.left_to.get(what, {})
        for rank in [rank for rank, first in left_to.items() if now - first >= YIELD_SECONDS + ENOUGH_SECONDS]:
            del left_to[rank]
        return frozenset(rank for rank, first in left_to.items() if now - first >= YIELD_SECONDS)

    def leave(self, what: Resource, ranks: Collection[Rank]) -> float:
        """Remember to whom it is left. Returns for how many more seconds; ``YIELD_SECONDS`` if somebody is new."""
        now, left_to = time.monotonic(), self.left_to.setdefault(what, {})
        if any(rank not in left_to for rank in ranks):
            left_to |= {rank: left_to.get(rank, now) for rank in ranks}
            return YIELD_SECONDS
        return YIELD_SECONDS + min(left_to[rank] for rank in ranks) - now

    def says_again(self, kind: SeatKind, first: Rank, seconds: float) -> bool:
        """Whether it must be announced to others: for the first time, or again because the last time is that long ago.

        Who is first among equals changes often. That is said once a second.
        """
        now = time.monotonic()
        before, at = self.waits.get(kind, (None, 0.0))
        if before is not None and before.live == first.live and now - at < (seconds if before == first else 1.0):
            return False
        self.waits[kind] = (first, now)
        return True

    def pass_over(self, unreadable: Mapping[str, int]) -> set[int]:
        """These claim nothing. Returns the pipelines of those that are new: others may take their places."""
        new = unreadable.keys() - self.unreadable.keys()
        self.unreadable |= unreadable
        return {unreadable[id] for id in new}

    def forget_all_but(self, active: Collection[str]) -> None:
        """Only these backfills have not ended."""
        self.unreadable = {id: self.unreadable[id] for id in self.unreadable.keys() & active}

    def unpublished(self, numbers: Collection[int]) -> list[str]:
        """Backfills of these pipelines with accepted runs that wait for a publisher."""
        return [id for id, no in self.to_publish.items() if no in numbers]

    def publish_later(self, waiting: Mapping[str, int], *, checked: Collection[str]) -> None:
        """Of the ``checked`` backfills, those in ``waiting`` have such runs."""
        for id in checked:
            self.to_publish.pop(id, None)
        self.to_publish |= waiting
