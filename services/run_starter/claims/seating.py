"""Decides for one claim whose turn it is: at free seats of all hosts, and at places that one attempt at a time writes.

An attempt gets all places that it writes (``Pipeline(writes=…)``) at once, or none, so two attempts never wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from retrofill.states import AttemptMode
from retrofill_core.bus import metrics
from retrofill_core.bus.handler import RECHECK_SECONDS
from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store import giving_way, hosts, places, runs
from retrofill_core.store.rows import Backfill
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


# How often those that wait look again, and how long others leave it to them: whoever stops looking holds nobody up.
WRITE_POLL_SECONDS = 1.0
LEFT_SECONDS = 5.0


def writes_of(backfill: Backfill, definition: PipelineDefinition) -> tuple[str, ...]:
    """What an attempt of the backfill writes without staging it. An undo moves what was published."""
    return () if backfill.undoes is not None else definition.unstaged


def may_write(tx: Transaction, memory: Memory, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without those whose turn it is not, in the same order.

    One that writes something gets one attempt at most. Who was served longest ago is first, also among
    those that wait in other shards.
    """
    wanted = {name for each in candidates for name in each.writes}
    if not wanted:
        return list(candidates)
    undecided = places.undecided(tx.conn, wanted)
    decided = wanted - undecided
    held, waiting = places.held(tx.conn, decided), places.waiting(tx.conn, decided)
    taken, at_work = {one.name for one in held}, {one.backfill_id for one in held}
    first: set[str] = set()
    for each in sorted(candidates, key=lambda each: (each.since, each.id)):
        names = frozenset(each.writes)
        if names and each.id in at_work:
            # The end of its own attempt has it checked again.
            continue
        if names & undecided:
            metrics.CLAIMS_PUT_OFF.labels("write_undecided").inc()
            tx.schedule_check(pipeline_key(each.pipeline_no), RECHECK_SECONDS)
            continue
        before = {one.name for one in waiting if (one.since, one.backfill_id) < (each.since, each.id)}
        if names & (taken | before):
            metrics.CLAIMS_PUT_OFF.labels("write_turn").inc()
            memory.to_write.add(pipeline_key(each.pipeline_no))
            tx.schedule_check(pipeline_key(each.pipeline_no), WRITE_POLL_SECONDS)
            places.wait(tx.conn, names, each.id, each.since, LEFT_SECONDS)
        else:
            first.add(each.id)
        # What waits for one of them is as good as taken: who comes later leaves all of them to it.
        taken |= names
    if no_more := first & {one.backfill_id for one in waiting}:
        places.wait_no_more(tx.conn, no_more)
    return [_once(each) for each in candidates if each.id in first]


def _once(candidate: Candidate) -> Candidate:
    if not candidate.writes:
        return candidate
    return replace(candidate, limit=min(candidate.limit, len(candidate.slots) + 1))
