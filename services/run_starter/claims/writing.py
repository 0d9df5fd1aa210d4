"""Turns of attempts that write the same place (``Pipeline(writes=…)``): one of them at a time.

An attempt gets all places that it writes at once, or none, so two attempts never wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retrofill_core.bus import metrics
from retrofill_core.bus.handler import RECHECK_SECONDS
from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store import write_locks
from retrofill_core.store.rows import Backfill
from run_starter.memory import Memory, pipeline_key
from run_starter.sharing import Candidate

# How often those that wait look again, and how long others leave it to them: whoever stops looking holds nobody up.
POLL_SECONDS = 1.0
LEFT_SECONDS = 5.0


def writes_of(backfill: Backfill, definition: PipelineDefinition) -> tuple[str, ...]:
    """What an attempt of the backfill writes without staging it. An undo moves what was published."""
    return () if backfill.undoes is not None else definition.unstaged


def may_write(tx: Transaction, memory: Memory, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without those whose turn it is not, in the same order.

    Those that write something get one attempt at most. Who was served longest ago is first, also among
    those that wait in other shards.
    """
    wanted = {name for each in candidates for name in each.writes}
    if not wanted:
        return list(candidates)
    undecided = write_locks.undecided(tx.conn, wanted)
    decided = wanted - undecided
    held, waiting = write_locks.held(tx.conn, decided), write_locks.waiting(tx.conn, decided)
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
            tx.schedule_check(pipeline_key(each.pipeline_no), POLL_SECONDS)
            write_locks.wait(tx.conn, names, each.id, each.since, LEFT_SECONDS)
        else:
            first.add(each.id)
        # What waits for one of them is as good as taken: who comes later leaves all of them to it.
        taken |= names
    if no_more := first & {one.backfill_id for one in waiting}:
        write_locks.wait_no_more(tx.conn, no_more)
    return [_once(each) for each in candidates if each.id in first]


def _once(candidate: Candidate) -> Candidate:
    if not candidate.writes:
        return candidate
    return replace(candidate, limit=min(candidate.limit, len(candidate.slots) + 1))
