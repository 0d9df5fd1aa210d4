"""Shares free slots among the backfills that can use them. Pure."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# At most this long, a pipeline's slots are left to other shards' backfills with fewer live attempts.
YIELD_SECONDS = 5.0

Slots = tuple[int, int]  # of the backfill, and of its pipeline


@dataclass(frozen=True)
class Candidate:
    """A backfill with a run to start. ``slots``: held by its live attempts."""

    id: str
    pipeline_no: int
    limit: int
    slots: frozenset[int]


@dataclass(frozen=True)
class Pipeline:
    """``slots``: held by live attempts; ``rivals``: live attempts per claimable backfill elsewhere."""

    limit: int
    slots: frozenset[int]
    rivals: tuple[int, ...] = ()
    yielded_for: float = 0.0  # seconds since a slot was first left to a rival


@dataclass
class Shares:
    """Slots to fill, by backfill; pipelines with slots left to rivals, or without a free driver."""

    slots: dict[str, list[Slots]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    short_of_drivers: set[int] = field(default_factory=set)


def share(candidates: Sequence[Candidate], pipelines: Mapping[int, Pipeline], free_drivers: int) -> Shares:
    """Give each slot to the candidate with the fewest live attempts (ties: the earlier one)."""
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
    """Free slots, lowest first; none while a lowered limit is exceeded."""
    return [slot for slot in range(1, limit + 1) if slot not in taken][: max(0, limit - len(taken))]
