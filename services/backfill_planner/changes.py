"""Requests to change an active backfill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backfill_planner.decide import NO_BACKFILL, Refuse, nothing_to_do
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import BackfillChanged, BackfillChangeRequested, BackfillCommandRejected
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.store import backfills
from retrofill_core.store.failures import count_failed
from retrofill_core.store.rows import Planned

S = BackfillState


def decide(command: BackfillChangeRequested, state: str | None) -> dict[str, Any] | Refuse:
    """The columns to set, for a backfill in ``state`` (``None``: no such backfill)."""
    if state is None:
        return NO_BACKFILL
    if state not in (S.RUNNING, S.PAUSED):
        return nothing_to_do(state, "change")
    given = {name: getattr(command, name) for name in ("max_active_runs", "batch_size", "on_run_failure")}
    changes = {name: value for name, value in given.items() if value is not None}
    return changes or Refuse("it changes nothing: give max_active_runs, batch_size or on_run_failure")


def change(
    tx: Transaction, id: str, row: Planned | None, command: BackfillChangeRequested
) -> BackfillChanged | BackfillCommandRejected:
    """Change the backfill. ``row``: it, locked."""
    changes = decide(command, None if row is None else row.state)
    if isinstance(changes, Refuse):
        return BackfillCommandRejected(backfill_id=id, command=command.type, message=changes.message)
    assert row is not None
    if "on_run_failure" in changes:
        # As with a resume, failures committed so far are accepted, and none committed later.
        changes["failed_before"] = count_failed(tx.conn, id)
    backfills.change(tx.conn, id, changes)
    now = replace(row, **changes)
    of_pipeline = row.definition.get("batch_size", 1)
    return BackfillChanged(
        backfill_id=id,
        pipeline=row.pipeline,
        max_active_runs=now.max_active_runs,
        batch_size=min(now.batch_size or of_pipeline, of_pipeline),
        on_run_failure=now.on_run_failure,
    )
