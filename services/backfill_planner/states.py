"""Moves backfills to other states, and publishes that on the compacted topic ``backfill-states``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrofill_core.bus.faults import Conflict
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.states import BackfillStateChanged
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.store import backfills
from retrofill_core.store.clock import database_now
from retrofill_core.store.rows import Backfill


def move(
    tx: Transaction,
    row: Backfill,
    to: BackfillState,
    values: Mapping[str, Any],
    by_state: Mapping[str, int] | None = None,
) -> None:
    """Move a locked backfill to ``to``. ``values``: columns to set; ``by_state``: its runs. Raises ``Conflict``."""
    if not backfills.move(tx.conn, row.id, to, row.state, values):
        raise Conflict(f"backfill {row.id} is no longer {row.state.replace('_', ' ')}")
    record = BackfillStateChanged(
        backfill_id=row.id,
        pipeline=row.pipeline,
        state=to,
        range_start=row.covers.lower,
        range_end=row.covers.upper,
        runs=row.runs,
        undoes=row.undoes,
        runs_by_state=dict(by_state or {}),
        requested_at=row.requested_at,
        at=values.get("ended_at") or database_now(tx.conn),
    )
    tx.emit(Topic.BACKFILL_STATES, row.id, record)
