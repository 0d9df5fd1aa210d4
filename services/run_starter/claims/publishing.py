"""Forms publications: the accepted runs that one attempt publishes, once their own is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retrofill.sdk.names import MAX_BATCH
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store import hosts
from retrofill_core.store.claims import Accepted, Taken
from retrofill_core.store.rows import Backfill, Run
from run_starter.executors import has_tables
from run_starter.sharing import FreeSlots

# A publisher takes so many runs of several attempts. One attempt's are always together, as one commit publishes them.
PUBLISHED_AT_ONCE = 100


@dataclass(frozen=True)
class Publication:
    """Accepted runs of a backfill, the pool and executor of their publisher, and the slots for that."""

    backfill: Backfill
    accepted: Accepted
    pool: str
    executor: str
    slot: int
    pipeline_slot: int


def slots_left(row: Backfill, limits: Mapping[int, int], taken: Mapping[int, Taken]) -> int:
    """How many publishers a backfill may have now. ``limits`` and ``taken`` slots: by pipeline, if that is locked."""
    no = row.pipeline_no
    if no not in limits:
        return 0
    return min(
        FreeSlots(taken[no].of_backfills.get(row.id, set()), row.max_active_runs).left,
        FreeSlots(taken[no].pipeline_slots, limits[no]).left,
    )


def publishable(
    row: Backfill,
    accepted: Sequence[Accepted],
    definition: PipelineDefinition,
    most: int,
    limits: Mapping[int, int],
    taken: Mapping[int, Taken],
) -> list[Publication]:
    """At most so many publications of a backfill's accepted runs, for which there are slots; takes the slots."""
    no = row.pipeline_no
    own, shared = taken[no].of_backfills.setdefault(row.id, set()), taken[no].pipeline_slots
    of_backfill, of_pipeline = FreeSlots(own, row.max_active_runs), FreeSlots(shared, limits[no])
    found: list[Publication] = []
    for each in joined(accepted, min(most, slots_left(row, limits, taken))):
        slot, pipeline_slot = of_backfill.take(), of_pipeline.take()
        executor = definition.executor if _tables(each) else hosts.ANY
        found.append(Publication(row, each, definition.pool, executor, slot, pipeline_slot))
        own.add(slot)
        shared.add(pipeline_slot)
    return found


def joined(accepted: Sequence[Accepted], most: int) -> list[Accepted]:
    """The parts of at most so many publishers, in start order: equal ones, as far as attempts are not divided."""
    if not most:
        return []
    size = min(PUBLISHED_AT_ONCE, -(-sum(len(each.runs) for each in accepted) // most))
    parts: list[Accepted] = []
    for each in accepted:
        if parts and _fits(parts[-1], each, size):
            parts[-1] = Accepted([*parts[-1].runs, *each.runs], each.code)
        elif len(parts) < most:
            parts.append(each)
        else:
            break
    return parts


def span(runs: Sequence[Run]) -> tuple[int, int]:
    """The first and the last position. Runs of several attempts may overlap, and some in between may have ended."""
    positions = [each.position for each in runs]
    return min(positions), max(positions)


def _fits(part: Accepted, other: Accepted, size: int) -> bool:
    """Whether one publisher publishes both. It has the code of the attempts, and the executor for their kind of output.

    Those with which a publisher was lost have one of their own: others must not be lost with it again.
    """
    runs = [*part.runs, *other.runs]
    first, last = span(runs)
    return (
        len(runs) <= size
        and last - first < MAX_BATCH
        and part.code == other.code
        and _tables(part) == _tables(other)
        and all(each.lost_at is None for each in runs)
    )


def _tables(accepted: Accepted) -> bool:
    """Whether tables are published, by the Spark that staged them. Directories are by any process."""
    return has_tables(accepted.runs[0].folders)
