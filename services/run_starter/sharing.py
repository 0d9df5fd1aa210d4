"""Shares free slots and seats among the backfills that can use them. Pure."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count, filterfalse
from typing import NamedTuple, Self

from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.store.giving_way import Rank
from retrofill_core.store.hosts import SUBMIT, Seat

# How long a backfill waits before slots and seats are reserved for it rather than for another one with as many live
# attempts. Until it takes them they are idle, which a shorter wait is not worth.
RESERVED = timedelta(seconds=1)
# Until then it ranks after all others with as many attempts, no matter when it began to wait.
AFTER_ALL = timedelta(days=365_000)


class Shortage(NamedTuple):
    """A backfill without a seat, in the order in which it is announced to others.

    ``submits``: it needs a seat for spark-submit. Such shortages come last, since no host may offer such seats.
    """

    submits: bool
    rank: Rank


Slots = tuple[int, int, Seat]  # of the backfill, of its pipeline, and where
Resource = int | str  # a slot of this pipeline, or a seat of this pool


@dataclass(frozen=True)
class Candidate:
    """A backfill with a run to start. ``slots``: held by its live attempts.

    ``since``: when its last attempt ended (or was claimed, if it is live), or it was requested. ``suspects``: one of
    the runs is to be retried alone. ``writes``: what only one live attempt at a time may write.
    """

    id: str
    pipeline_no: int
    limit: int
    slots: frozenset[int]
    since: datetime
    executor: str = "pool"
    suspects: bool = False
    pool: str = DEFAULT_POOL
    writes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rivals:
    """Other backfills that compete for the same slots or seats, by rank.

    ``exhausted``: nothing more is reserved for these, because they did not take what was.
    """

    ranks: tuple[Rank, ...] = ()
    exhausted: frozenset[Rank] = frozenset()

    @classmethod
    def of(cls, ranks: Iterable[Rank], now: datetime, exhausted: frozenset[Rank]) -> Self:
        """Those of other shards, by the database's clock."""
        ranked = (each if each.since <= now - RESERVED else Rank(each.live, each.since + AFTER_ALL) for each in ranks)
        return cls(tuple(sorted(ranked)), exhausted)

    def before(self, rank: Rank) -> list[Rank]:
        """Those that go before a backfill."""
        return [each for each in self.ranks[: bisect_left(self.ranks, rank)] if each not in self.exhausted]

    def joined_by(self, rank: Rank) -> Rivals:
        """With one more."""
        return Rivals(tuple(sorted([*self.ranks, rank])), self.exhausted)


@dataclass(frozen=True)
class PipelineSlots:
    """``slots``: held by live attempts."""

    limit: int
    slots: frozenset[int]
    rivals: Rivals = Rivals()


class FreeSlots:
    """``left``: how many slots are free; none while a lowered limit is exceeded. However high the limit, it costs nothing."""

    def __init__(self, taken: Set[int], limit: int) -> None:
        # Slots above a lowered limit may be taken, so at least as many up to the limit are free.
        self.left = max(0, limit - len(taken))
        self._free = filterfalse(frozenset(taken).__contains__, count(1))

    def take(self) -> int:
        """The lowest one."""
        self.left -= 1
        return next(self._free)


@dataclass
class FreeSeats:
    """Free seats of one pool, the nearest first. Those that are given are removed."""

    free: list[Seat]
    rivals: Rivals = Rivals()

    def count(self, executor: str) -> int:
        """Number of seats for such an attempt."""
        return sum(seat.serves(executor) for seat in self.free)

    def take(self, executor: str) -> Seat:
        """The best seat for such an attempt. One that needs no warm driver leaves them to others."""
        found = [seat for seat in self.free if seat.serves(executor)]
        best = next((seat for seat in found if seat.warm != (executor == SUBMIT)), found[0])
        self.free.remove(best)
        return best


@dataclass
class Shares:
    """Slots and seats to fill, by backfill, and what some pipelines went without.

    ``left``: by pipeline, the resource that it left to rivals; ``left_to``: to which. ``short``: by pool and pipeline, the
    first backfill without a seat.
    """

    slots: dict[str, list[Slots]] = field(default_factory=dict)
    left: dict[int, Resource] = field(default_factory=dict)
    left_to: dict[Resource, set[Rank]] = field(default_factory=dict)
    short: dict[str, dict[int, Shortage]] = field(default_factory=dict)

    def fall_short(self, pool: str, pipeline_no: int, rank: Rank, executor: str = "pool") -> None:
        """There is no seat in the pool for a backfill."""
        shortage, short = Shortage(executor == "spark-submit", rank), self.short.setdefault(pool, {})
        short[pipeline_no] = min(shortage, short.get(pipeline_no, shortage))

    def leave(self, pipeline_no: int, what: Resource, rivals: Sequence[Rank]) -> None:
        """A backfill of the pipeline leaves it to these."""
        self.left[pipeline_no] = what
        self.left_to.setdefault(what, set()).update(rivals)


def share(
    candidates: Sequence[Candidate],
    pipelines: Mapping[int, PipelineSlots],
    seats: Mapping[str, FreeSeats],
    now: datetime,
) -> Shares:
    """Give each slot to the candidate with the fewest live attempts (ties: the one served longest ago).

    ``seats``: by pool, of each candidate's; ``now``: by the database's clock.
    """
    shares = Shares()
    own = {each.id: FreeSlots(each.slots, each.limit) for each in candidates}
    shared = {no: FreeSlots(each.slots, each.limit) for no, each in pipelines.items()}
    poorest = [(Rank(len(each.slots), each.since), n) for n, each in enumerate(candidates)]
    heapq.heapify(poorest)
    while poorest:
        rank, n = heapq.heappop(poorest)
        each = candidates[n]
        no = each.pipeline_no
        if not own[each.id].left or not shared[no].left:
            continue
        there = seats[each.pool]
        free = there.count(each.executor)
        if free == 0:
            shares.fall_short(each.pool, no, rank, each.executor)
            if there.free and each.executor != "spark-submit":
                # A cold seat, which serves only that, becomes warm if it is left alone.
                there.rivals = there.rivals.joined_by(rank)
            continue
        if len(first := pipelines[no].rivals.before(rank)) >= shared[no].left:
            shares.leave(no, no, first)
            continue
        if len(first := there.rivals.before(rank)) >= free:
            shares.leave(no, each.pool, first)
            continue
        place = (own[each.id].take(), shared[no].take(), there.take(each.executor))
        shares.slots.setdefault(each.id, []).append(place)
        heapq.heappush(poorest, (Rank(rank.live + 1, now), n))
    return shares


def most(candidates: Sequence[Candidate], pipelines: Mapping[int, PipelineSlots]) -> int:
    """How many attempts the slots allow, if there are seats for all."""
    wanted = dict.fromkeys(pipelines, 0)
    for each in candidates:
        wanted[each.pipeline_no] += FreeSlots(each.slots, each.limit).left
    return sum(min(wanted[no], FreeSlots(each.slots, each.limit).left) for no, each in pipelines.items())
