"""Free seats of all hosts, for one claim: locks as many as it could use, or says that it waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from retrofill.states import AttemptMode
from retrofill_core.bus import metrics
from retrofill_core.bus.handler import RECHECK_SECONDS
from retrofill_core.bus.transaction import Transaction
from retrofill_core.store import giving_way, hosts, runs
from run_starter.claims.publishing import Publication
from run_starter.claims.starting import Wanted
from run_starter.memory import YIELD_SECONDS, Memory, pipeline_key, slot_freed
from run_starter.sharing import Candidate, FreeSeats, PipelineSlots, Rivals, Shares, most

POLL_SECONDS = 5.0


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
                giving_way.wait_for_seat(tx.conn, tx.partition, kind, first, 2 * POLL_SECONDS)
    for kind in [each for each in memory.waits if each not in memory.first_waiting(each.pool)]:
        del memory.waits[kind]
        giving_way.wait_for_no_seat(tx.conn, tx.partition, kind)
