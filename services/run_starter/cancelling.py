"""Cancels backfills: ends queued runs and asks the drivers of live ones to stop."""

from __future__ import annotations

from sqlalchemy import RowMapping

from retrofill.bus.faults import Conflict
from retrofill.bus.transaction import Transaction
from retrofill.contract.runs import RunCancelled
from retrofill.contract.topics import Topic
from retrofill.domain.run import RunState
from retrofill.store import attempts
from retrofill.store import runs as store
from retrofill.store.clock import database_now
from run_starter.memory import backfill_key
from run_starter.outcomes import facts, resolve_deadlines

CANCEL_CHUNK = 500


def cancel(tx: Transaction, row: RowMapping) -> None:
    """Cancel queued runs, one chunk per check, and ask the drivers of live ones to stop."""
    tx.notify(attempts.ATTEMPT_CHANNEL, attempts.mark_cancel_requested(tx.conn, row["id"]))
    queued = store.queued(tx.conn, row["id"], CANCEL_CHUNK)
    # Read the time under the locks: a watcher that held one may have found its deadline missed.
    store.lock(tx.conn, [each["id"] for each in queued])
    now = database_now(tx.conn)
    given = [{"id": each["id"]} for each in queued]
    values = {"finished_at": now, "lost_at": None}
    ended = store.move(tx.conn, RunState.CANCELLED, given, values, from_states=[RunState.QUEUED], guard=())
    if ended != len(given):
        raise Conflict("a queued run was changed by another transaction")
    for each in queued:
        tx.emit(Topic.RUN_EVENTS, row["id"], RunCancelled(**facts(each, row["pipeline"], now)))
    resolve_deadlines(tx, [each["id"] for each in queued])
    if len(queued) == CANCEL_CHUNK:
        tx.schedule_check(backfill_key(row["id"]))
