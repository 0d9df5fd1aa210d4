"""Events about runs that several modules emit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping

from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.runs import RunPublishing
from retrofill_core.contract.states import IntervalStateChanged, interval_key
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.run import RunState

Row = RowMapping | Mapping[str, Any]


def facts(row: Row, pipeline: str, now: datetime, attempt: int | None = None) -> dict[str, Any]:
    """The fields that all events about a run have. ``attempt``: how often it has begun by now."""
    return {
        "backfill_id": row["backfill_id"],
        "pipeline": pipeline,
        "run_id": row["id"],
        "undoes_run_id": row["restores"],
        "attempt": row["attempt"] if attempt is None else attempt,
        "interval_start": row["interval_start"],
        "interval_end": row["interval_end"],
        "at": now,
    }


def publishing(tx: Transaction, row: Row, pipeline: str, now: datetime, publication: int) -> None:
    """Announce that a run's output is being published."""
    fields = facts(row, pipeline, now)
    event = RunPublishing(**fields, outputs=tuple(row["outputs"]["folders"]), publication=publication)
    tx.emit(Topic.RUN_EVENTS, row["backfill_id"], event)
    emit_state(tx, fields, RunState.PUBLISHING)


def emit_state(tx: Transaction, fields: dict[str, Any], state: RunState, *, linger: bool = False) -> None:
    """Publish the state on ``interval-states``. A run that never started has no record there.

    Until an undo has succeeded, what it is to undo is the state.
    """
    undoes = fields["undoes_run_id"] is not None
    if undoes and state != RunState.SUCCEEDED:
        return
    key = interval_key(fields["pipeline"], fields["interval_start"])
    event = IntervalStateChanged.model_validate({**fields, "state": "undone" if undoes else str(state)})
    tx.emit(Topic.INTERVAL_STATES, key, event, linger=linger)
