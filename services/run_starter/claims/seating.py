"""Free seats of all hosts, for one claim: locks as many as it could use, or says that it waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from retrofill.states.attempt import AttemptMode
from retrofill_core.bus.handler import RECHECK_SECONDS
from retrofill_core.bus.observability import metrics
from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store import hosts, runs, seat_waits
from retrofill_core.store.claims import Accepted, Taken
from retrofill_core.store.rows import Backfill
from run_starter.claims.starting import Wanted
from run_starter.executors import has_tables
from run_starter.memory import YIELD_SECONDS, Memory, pipeline_key, slot_freed
from run_starter.sharing import Candidate, FreeSeats, FreeSlots, PipelineSlots, Rivals, Shares, most

POLL_SECONDS = 5.0


@dataclass(frozen=True)
class Publication:
    """Accepted runs of one attempt of a backfill, the pool and executor of their publisher, and the slots for that."""

    backfill: Backfill
    accepted: Accepted
    pool: str
    executor: str
    slot: int
    pipeline_slot: int


def publishable(
    locked: Mapping[str, Backfill],
    staged: Mapping[str, Sequence[Accepted]],
    definitions: Mapping[str, PipelineDefinition],
    limits: Mapping[int, int],
    taken: Mapping[int, Taken],
) -> list[Publication]:
    """The accepted runs without a publisher for which there are slots; takes the slots.

    ``locked``: their backfills by id; ``limits`` and ``taken`` slots: by pipeline.
    """
    found: list[Publication] = []
    for id, definition in definitions.items():
        row, no = locked[id], locked[id].pipeline_no
        if no not in limits:
            continue
        own, shared = taken[no].of_backfills.setdefault(id, set()), taken[no].pipeline_slots
        of_backfill, of_pipeline = FreeSlots(own, row.max_active_runs), FreeSlots(shared, limits[no])
        for each in staged[id][: min(of_backfill.left, of_pipeline.left)]:
            slot, pipeline_slot = of_backfill.take(), of_pipeline.take()
            found.append(Publication(row, each, definition.pool, publisher_of(definition, each), slot, pipeline_slot))
            own.add(slot)
            shared.add(pipeline_slot)
    return found


def publisher_of(definition: PipelineDefinition, accepted: Accepted) -> str:
    """Where accepted output is published: tables by the Spark that staged them, directories by any process."""
    return definition.executor if has_tables(accepted.runs[0].folders) else hosts.ANY


def offered(
    tx: Transaction,
    own: Collection[int],
    memory: Memory,
    candidates: Sequence[Candidate],
    pipelines: Mapping[int, PipelineSlots],
    publications: Sequence[Publication],
    now: datetime,
) -> tuple[dict[str, FreeSeats], dict[str, int]]:
    """By pool: as many free seats as these could use, locked, and how many there are, if known.

    One statement for each pool.
    """
    seats: dict[str, FreeSeats] = {}
    totals: dict[str, int] = {}
    for pool in dict.fromkeys([each.pool for each in publications] + [each.pool for each in candidates]):
        mine = [each for each in candidates if each.pool == pool]
        publishers = [each.executor for each in publications if each.pool == pool]
        executors = {*publishers, *(each.executor for each in mine)}
        count = len(publishers) + most(mine, pipelines)
        offer = hosts.lock_free(tx.conn, own, tx.partition, pool, executors, count) if count else hosts.Offer([])
        seats[pool] = FreeSeats(offer.seats, Rivals.of(offer.rivals, now, memory.exhausted(pool)))
        if offer.total is not None:
            totals[pool] = offer.total
    return seats, totals


def seated(
    publications: Sequence[Publication], seats: Mapping[str, FreeSeats]
) -> tuple[list[Wanted], list[Publication]]:
    """Attempts that publish, while there are seats, and the others."""
    wanted: list[Wanted] = []
    unseated: list[Publication] = []
    for each in publications:
        free = seats[each.pool]
        if free.count(each.executor):
            place = (each.slot, each.pipeline_slot, free.take(each.executor))
            accepted = each.accepted
            wanted.append(
                Wanted(each.backfill, AttemptMode.PUBLISH, accepted.runs, *place, accepted_code=accepted.code)
            )
        else:
            unseated.append(each)
    return wanted, unseated


def leave(tx: Transaction, memory: Memory, shares: Shares) -> None:
    """Tell the other shards what is left to them, and check again when they had the time to take it."""
    seconds = {what: memory.leave(what, ranks) for what, ranks in shares.left_to.items()}
    news = [what for what, left in seconds.items() if left == YIELD_SECONDS]
    tx.notify(hosts.SEAT_CHANNEL, [pool for pool in news if isinstance(pool, str)])
    tx.notify(runs.SLOT_CHANNEL, [slot_freed(no, tx.partition) for no in news if isinstance(no, int)])
    for no, what in shares.left.items():
        metrics.CLAIMS_PUT_OFF.labels("left_to_others").inc()
        tx.schedule_check(pipeline_key(no), max(RECHECK_SECONDS, seconds[what]))


def wait(tx: Transaction, memory: Memory, shares: Shares) -> None:
    """Remember the backfills that wait for a seat, and announce them to the other shards."""
    for pool, shortages in shares.short.items():
        metrics.CLAIMS_PUT_OFF.labels("no_driver").inc(len(shortages))
        memory.starve(pool, {pipeline_key(no): shortage for no, shortage in shortages.items()})
        for no in shortages:
            # In case the notification of a free seat is lost.
            tx.schedule_check(pipeline_key(no), POLL_SECONDS)
        for kind, first in memory.first_waiting(pool).items():
            if memory.says_again(kind, first, POLL_SECONDS / 2):
                seat_waits.wait(tx.conn, tx.partition, kind, first, 2 * POLL_SECONDS)
    for kind in [each for each in memory.waits if each not in memory.first_waiting(each.pool)]:
        del memory.waits[kind]
        seat_waits.wait_no_more(tx.conn, tx.partition, kind)
