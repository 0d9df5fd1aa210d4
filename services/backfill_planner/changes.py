"""Requests to change an active backfill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backfill_planner.decide import Refuse, nothing_to_do
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import BackfillChanged, BackfillChangeRequested
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.store import backfills, pipelines
from retrofill_core.store.failures import count_failed
from retrofill_core.store.rows import Planned

S = BackfillState


def decide(command: BackfillChangeRequested, state: str) -> dict[str, Any] | Refuse:
    """The columns to set, for a backfill in ``state``."""
    if state not in (S.RUNNING, S.PAUSED):
        return nothing_to_do(state, "change")
    given = {name: getattr(command, name) for name in ("max_active_runs", "batch_size", "on_run_failure")}
    changes = {name: value for name, value in given.items() if value is not None}
    return changes or Refuse("it changes nothing: give max_active_runs, batch_size or on_run_failure")


def change(tx: Transaction, row: Planned, command: BackfillChangeRequested) -> BackfillChanged | Refuse:
    """Change the backfill, which is locked."""
    changes = decide(command, row.state)
    if isinstance(changes, Refuse):
        return changes
    if "on_run_failure" in changes:
        # As with a resume, failures committed so far are accepted, and none committed later.
        changes["failed_before"] = count_failed(tx.conn, row.id)
    backfills.change(tx.conn, row.id, changes)
    now = replace(row, **changes)
    of_pipeline = row.definition.get("batch_size", 1)
    return BackfillChanged(
        backfill_id=row.id,
        pipeline=row.pipeline,
        max_active_runs=now.max_active_runs,
        pipeline_max_active_runs=pipelines.limit(tx.conn, row.pipeline_no),
        batch_size=min(now.batch_size or of_pipeline, of_pipeline),
        on_run_failure=now.on_run_failure,
    )
