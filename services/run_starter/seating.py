"""Free seats of all hosts, for one claim: locks as many as it could use, or says that it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import RowMapping

from retrofill.bus.observability import metrics
from retrofill.bus.transaction import Transaction
from retrofill.domain.attempt import AttemptMode
from retrofill.store import hosts
from run_starter.memory import SEATS, Memory, pipeline_key
from run_starter.sharing import Candidate, Pipeline, Rivals, Seats, Shares, most
from run_starter.starting import Wanted

POLL_SECONDS = 5.0
# A backfill, its accepted run, and the slots for a publisher.
Publication = tuple[RowMapping, RowMapping, int, int]


def offered(
    tx: Transaction,
    own: int,
    memory: Memory,
    candidates: Sequence[Candidate],
    pipelines: Mapping[int, Pipeline],
    publishers: int,
) -> tuple[Seats, int | None]:
    """As many free seats as these could use, locked, and how many seats there are, if known."""
    executors = {each.executor for each in candidates} | ({"pool"} if publishers else set())
    count = publishers + most(candidates, pipelines)
    if count == 0:
        return Seats([]), None
    offer = hosts.lock_free(tx.conn, own, tx.partition, executors, count)
    return Seats(offer.seats, Rivals(tuple(sorted(offer.rivals)), memory.yielded_for(SEATS))), offer.total


def seated(publications: Sequence[Publication], seats: Seats) -> tuple[list[Wanted], set[int]]:
    """Attempts that publish, while there are seats, and the pipelines of the others."""
    wanted: list[Wanted] = []
    unseated: set[int] = set()
    for row, run, slot, pipeline_slot in publications:
        if seats.count("pool"):
            wanted.append(Wanted(row, AttemptMode.PUBLISH, [run], slot, pipeline_slot, seats.take("pool")))
        else:
            unseated.add(row["pipeline_no"])
    return wanted, unseated


def wait(tx: Transaction, memory: Memory, shares: Shares) -> bool:
    """Remember who waits for a seat, and tell the other shards; returns whether nobody does."""
    if memory.leave(SEATS, shares.seats_left) == 0.0:
        tx.notify(hosts.SEAT_CHANNEL, [""])
    if shares.short:
        metrics.CLAIMS_PUT_OFF.labels("no_driver").inc(len(shares.short))
        memory.starve(pipeline_key(no) for no in shares.short)
        for no in shares.short:
            # In case the notification of a free seat is lost.
            tx.schedule_check(pipeline_key(no), POLL_SECONDS)
    if shares.fewest is not None and memory.says_again(shares.fewest, POLL_SECONDS / 2):
        hosts.wait(tx.conn, tx.partition, shares.fewest, 2 * POLL_SECONDS)
    if not memory.starving and memory.waits is not None:
        memory.waits = None
        hosts.wait_no_more(tx.conn, tx.partition)
    return not memory.starving
