"""Cancels backfills and single runs: ends queued runs and asks the drivers of live ones to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrofill.system.crash import crash_point
from retrofill_core.bus.faults import Conflict
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.runs import RunCancelled
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, run_commands
from retrofill_core.store import runs as store
from retrofill_core.store.rows import Backfill, Run
from retrofill_core.store.sql import database_now
from run_starter.announcing import emit_state, facts
from run_starter.memory import backfill_key
from run_starter.reports.outcomes import resolve_deadlines

CANCEL_CHUNK = 500


def cancel(tx: Transaction, row: Backfill) -> None:
    """Cancel queued runs, one chunk per check, and ask the drivers of live ones to stop.

    Runs whose output waits for a review are cancelled likewise.
    """
    tx.notify(attempts.ATTEMPT_CHANNEL, attempts.mark_cancel_requested(tx.conn, row.id))
    _end(tx, {row.id: row}, store.queued(tx.conn, row.id, CANCEL_CHUNK))
    if row.approved is not None:
        held = store.held(tx.conn, row.id, row.approved, CANCEL_CHUNK)
        _end(tx, {row.id: row}, held, RunState.STAGED)


def cancel_runs(tx: Transaction, rows: Mapping[str, Backfill]) -> list[str]:
    """Cancel the runs that users named, of locked backfills, likewise.

    An attempt ends for the sake of one of its runs; the others are then queued again. Returns the backfills that may
    have more queued runs to cancel: nothing of theirs may start before the next check.
    """
    if not rows:
        return []
    tx.notify(attempts.ATTEMPT_CHANNEL, run_commands.mark_release_requested(tx.conn, rows))
    queued = run_commands.queued_to_cancel(tx.conn, rows, CANCEL_CHUNK)
    _end(tx, rows, queued)
    if queued:
        crash_point("run-cancel:applied")
    left = list(rows) if len(queued) == CANCEL_CHUNK else []
    for id in left:
        tx.schedule_check(backfill_key(id))
    return left


def _end(
    tx: Transaction, rows: Mapping[str, Backfill], waiting: Sequence[Run], state: RunState = RunState.QUEUED
) -> None:
    """Cancel these runs in ``state`` of these backfills, which are checked again after a whole chunk."""
    # Read the time under the locks: a watcher that held one may have found its deadline missed.
    store.lock(tx.conn, [each.id for each in waiting])
    now = database_now(tx.conn)
    given = [{"id": each.id} for each in waiting]
    values = {"finished_at": now, "lost_at": None}
    ended = store.move(tx.conn, RunState.CANCELLED, given, values, from_states=[state], guard=())
    if ended != len(given):
        raise Conflict(f"a {state} run was changed by another transaction")
    for each in waiting:
        fields = facts(each, rows[each.backfill_id].pipeline, now)
        tx.emit(Topic.RUN_EVENTS, each.backfill_id, RunCancelled(**fields))
        if each.started_at is not None:
            # An earlier attempt of it was lost or released, so it has a record.
            emit_state(tx, fields, RunState.CANCELLED)
    resolve_deadlines(tx, [each.id for each in waiting])
    if len(waiting) == CANCEL_CHUNK:
        for id in dict.fromkeys(each.backfill_id for each in waiting):
            tx.schedule_check(backfill_key(id))
