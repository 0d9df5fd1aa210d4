"""Publishes the state of backfills on the compacted topic ``backfill-states``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.states import BackfillStateChanged
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.store.rows import Backfill


def emit_state(
    tx: Transaction,
    row: Backfill,
    state: BackfillState,
    at: datetime,
    by_state: Mapping[str, int] | None = None,
) -> None:
    """Publish that the backfill entered ``state``, in the transaction that changes ``row``."""
    record = BackfillStateChanged(
        backfill_id=row.id,
        pipeline=row.pipeline,
        state=state,
        range_start=row.covers.lower,
        range_end=row.covers.upper,
        runs=row.runs,
        undoes=row.undoes,
        runs_by_state=dict(by_state or {}),
        requested_at=row.requested_at,
        at=at,
    )
    tx.emit(Topic.BACKFILL_STATES, row.id, record)
