"""How free slots are shared among the backfills that could use them. Pure."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Up to so long slots of a pipeline are left to backfills of other shards that have fewer live runs.
YIELD_SECONDS = 5.0

Slots = tuple[int, int]  # of the backfill, and of its pipeline


@dataclass(frozen=True)
class Candidate:
    """A backfill with a run to start; ``slots`` are those that its live runs hold."""

    id: str
    pipeline_no: int
    limit: int
    slots: frozenset[int]


@dataclass(frozen=True)
class Pipeline:
    """``slots`` are those that live runs hold; ``rivals`` the live runs of each claimable backfill of another shard."""

    limit: int
    slots: frozenset[int]
    rivals: tuple[int, ...] = ()
    yielded_for: float = 0.0  # seconds since a slot was first left to a rival


@dataclass
class Shares:
    """Runs to start, by backfill, and the pipelines of which slots were left to rivals or found no driver."""

    slots: dict[str, list[Slots]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    short_of_drivers: set[int] = field(default_factory=set)


def share(candidates: Sequence[Candidate], pipelines: Mapping[int, Pipeline], free_drivers: int) -> Shares:
    """One slot at a time to the candidate with the fewest live runs (the earlier one of two), within all limits."""
    shares = Shares()
    own = {each.id: free_slots(each.slots, each.limit) for each in candidates}
    shared = {no: free_slots(each.slots, each.limit) for no, each in pipelines.items()}
    rivals = {no: sorted(each.rivals) for no, each in pipelines.items()}
    poorest = [(len(each.slots), n) for n, each in enumerate(candidates)]
    heapq.heapify(poorest)
    while poorest:
        live, n = heapq.heappop(poorest)
        each = candidates[n]
        no = each.pipeline_no
        if not own[each.id] or not shared[no]:
            continue
        if free_drivers == 0:
            shares.short_of_drivers.add(no)
            continue
        if pipelines[no].yielded_for < YIELD_SECONDS and bisect_left(rivals[no], live) >= len(shared[no]):
            shares.left.add(no)
            continue
        shares.slots.setdefault(each.id, []).append((own[each.id].pop(0), shared[no].pop(0)))
        free_drivers -= 1
        heapq.heappush(poorest, (live + 1, n))
    return shares


def free_slots(taken: frozenset[int], limit: int) -> list[int]:
    """Free slots, lowest first; after a limit was lowered, none until so many have ended that it holds."""
    return [slot for slot in range(1, limit + 1) if slot not in taken][: max(0, limit - len(taken))]
