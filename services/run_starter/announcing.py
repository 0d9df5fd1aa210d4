"""Events about runs that several modules emit."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.runs import IntervalStateChanged, RunPublishing, interval_key
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.run import RunState
from retrofill_core.store.rows import Run


def facts(run: Run, pipeline: str, now: datetime, attempt: int | None = None) -> dict[str, Any]:
    """The fields that all events about a run have. ``attempt``: how often it has begun by now."""
    return {
        "backfill_id": run.backfill_id,
        "pipeline": pipeline,
        "run_id": run.id,
        "undoes_run_id": run.restores,
        "attempt": run.attempt if attempt is None else attempt,
        "interval_start": run.interval_start,
        "interval_end": run.interval_end,
        "at": now,
    }


def publishing(tx: Transaction, fields: dict[str, Any], outputs: tuple[str, ...], publication: int) -> None:
    """Announce that a run's output is being published."""
    event = RunPublishing(**fields, outputs=outputs, publication=publication)
    tx.emit(Topic.RUN_EVENTS, fields["backfill_id"], event)
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
