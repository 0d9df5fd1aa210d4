"""Shares free slots and seats among the backfills that can use them. Pure."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retrofill.domain.names import DEFAULT_POOL
from retrofill.store.hosts import Seat

# At most this long, slots and seats are left to other shards' backfills with fewer live attempts.
YIELD_SECONDS = 5.0

Slots = tuple[int, int, Seat]  # of the backfill, of its pipeline, and where


@dataclass(frozen=True)
class Candidate:
    """A backfill with a run to start. ``slots``: held by its live attempts.

    ``suspects``: one of the runs is to be retried alone.
    """

    id: str
    pipeline_no: int
    limit: int
    slots: frozenset[int]
    executor: str = "pool"
    suspects: bool = False
    pool: str = DEFAULT_POOL


@dataclass(frozen=True)
class Rivals:
    """Backfills of other shards that could use the same: their live attempts, fewest first."""

    live: tuple[int, ...] = ()
    yielded_for: float = 0.0  # seconds since something was first left to one of them

    def go_first(self, live: int, left: int) -> bool:
        """Whether those with fewer than ``live`` attempts need all that is ``left``."""
        return self.yielded_for < YIELD_SECONDS and bisect_left(self.live, live) >= left


@dataclass(frozen=True)
class Pipeline:
    """``slots``: held by live attempts."""

    limit: int
    slots: frozenset[int]
    rivals: Rivals = Rivals()


@dataclass
class Seats:
    """Free seats of one pool, the nearest first. Those that are given are removed."""

    free: list[Seat]
    rivals: Rivals = Rivals()

    def count(self, executor: str) -> int:
        """Number of seats for such an attempt."""
        return sum(seat.serves(executor) for seat in self.free)

    def take(self, executor: str) -> Seat:
        """The best seat for such an attempt. One that needs no warm driver leaves them to others."""
        found = [seat for seat in self.free if seat.serves(executor)]
        best = next((seat for seat in found if not seat.warm), found[0])
        self.free.remove(best)
        return best


@dataclass
class Shares:
    """Slots and seats to fill, by backfill; pipelines for which something was missing.

    ``left``: their slots, or the seats of their pool (``seats_left``), are left to rivals. By pool,
    ``short``: there is no seat; ``fewest``: the fewest live attempts of such a backfill.
    """

    slots: dict[str, list[Slots]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    seats_left: set[str] = field(default_factory=set)
    short: dict[str, set[int]] = field(default_factory=dict)
    fewest: dict[str, int] = field(default_factory=dict)

    def lacks(self, pool: str, pipeline_no: int, live: int) -> None:
        """There is no seat in the pool for a backfill with so many live attempts."""
        self.short.setdefault(pool, set()).add(pipeline_no)
        self.fewest[pool] = min(live, self.fewest.get(pool, live))


def share(candidates: Sequence[Candidate], pipelines: Mapping[int, Pipeline], seats: Mapping[str, Seats]) -> Shares:
    """Give each slot to the candidate with the fewest live attempts (ties: the earlier one).

    ``seats``: by pool, of each candidate's.
    """
    shares = Shares()
    own = {each.id: free_slots(each.slots, each.limit) for each in candidates}
    shared = {no: free_slots(each.slots, each.limit) for no, each in pipelines.items()}
    poorest = [(len(each.slots), n) for n, each in enumerate(candidates)]
    heapq.heapify(poorest)
    while poorest:
        live, n = heapq.heappop(poorest)
        each = candidates[n]
        no = each.pipeline_no
        if not own[each.id] or not shared[no]:
            continue
        there = seats[each.pool]
        free = there.count(each.executor)
        if free == 0:
            shares.lacks(each.pool, no, live)
            continue
        if pipelines[no].rivals.go_first(live, len(shared[no])):
            shares.left.add(no)
            continue
        if there.rivals.go_first(live, free):
            shares.left.add(no)
            shares.seats_left.add(each.pool)
            continue
        place = (own[each.id].pop(0), shared[no].pop(0), there.take(each.executor))
        shares.slots.setdefault(each.id, []).append(place)
        heapq.heappush(poorest, (live + 1, n))
    return shares


def most(candidates: Sequence[Candidate], pipelines: Mapping[int, Pipeline]) -> int:
    """How many attempts the slots allow, if there are seats for all."""
    wanted = dict.fromkeys(pipelines, 0)
    for each in candidates:
        wanted[each.pipeline_no] += len(free_slots(each.slots, each.limit))
    return sum(min(wanted[no], len(free_slots(each.slots, each.limit))) for no, each in pipelines.items())


def free_slots(taken: frozenset[int], limit: int) -> list[int]:
    """Free slots, lowest first; none while a lowered limit is exceeded."""
    return [slot for slot in range(1, limit + 1) if slot not in taken][: max(0, limit - len(taken))]
