"""Requests to undo a backfill: the undo is a backfill too, whose runs publish what was replaced.

Which intervals it has and why it is refused is in ``retrofill_core.store.undo``, which dry runs share.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from backfill_planner.answers import Draft, Request, answer
from backfill_planner.requests import too_slow
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import BackfillUndoRequested
from retrofill_core.domain.backfill import ReprocessBehavior
from retrofill_core.domain.planning import Rejection
from retrofill_core.settings import Settings
from retrofill_core.store.backfills import Outcome
from retrofill_core.store.undo import Undone, plan_undo, stored_undo


def answer_undo(
    tx: Transaction,
    request: Request[BackfillUndoRequested],
    known: Mapping[str, Outcome],
    undone: Undone | None,
    settings: Settings,
    partitions: int,
) -> Outcome:
    """Plan one undo, or repeat its recorded reply. Returns the reply. ``undone``: the backfill, if it exists."""
    pipeline = None if undone is None else undone.pipeline
    return answer(tx, request, known, pipeline, lambda: _draft(tx.conn, request, undone, settings), partitions)


def _draft(
    conn: Connection, request: Request[BackfillUndoRequested], undone: Undone | None, settings: Settings
) -> Draft | Rejection:
    body = request.body
    stored = None if undone is None else stored_undo(undone)
    made = plan_undo(conn, body, undone, stored, settings.max_plan_runs)
    if isinstance(made, Rejection):
        return made
    if (rejection := too_slow(len(made.skipped), request.timed_out)) is not None:
        return rejection
    assert undone is not None and stored is not None  # there is a plan
    behavior = str(ReprocessBehavior.COMPLETED)
    return Draft(
        stored,
        made,
        max_active_runs=body.max_active_runs or undone.max_active_runs,
        columns={"undoes": undone.id, "reprocess_behavior": behavior, "run_backwards": False, "conf": {}},
        undoes=undone.id,
    )
