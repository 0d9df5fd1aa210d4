"""Commands to active backfills and their runs: carried out, answered again or refused."""

from __future__ import annotations

from typing import Any

from backfill_planner.decide import Command, Enter, Refuse, Unchanged, answer_command
from backfill_planner.run_cancels import cancel_runs
from backfill_planner.states import emit_state
from retrofill.bus.faults import Conflict
from retrofill.bus.handler import Received
from retrofill.bus.transaction import Transaction
from retrofill.contract.backfills import (
    BackfillCancelled,
    BackfillCancelling,
    BackfillCommandRejected,
    BackfillEvent,
    BackfillPaused,
    BackfillResumed,
    RunCancelRequested,
)
from retrofill.contract.base import REGISTRY, Message
from retrofill.contract.topics import Topic
from retrofill.domain.backfill import BackfillState, CancelCause
from retrofill.store import backfills
from retrofill.store.backfills import Outcome
from retrofill.store.clock import database_now
from retrofill.store.failures import count_failed
from retrofill.store.transition import FromNow

S = BackfillState
# The reply to a command that leads to a state.
_EVENTS: dict[BackfillState, type[BackfillEvent]] = {
    S.PAUSED: BackfillPaused,
    S.RUNNING: BackfillResumed,
    S.CANCELLING: BackfillCancelling,
    S.CANCELLED: BackfillCancelled,
}


def handle_command(tx: Transaction, received: Received, command: Command | RunCancelRequested) -> None:
    """Carry out one command, identified by its ``ce_id``: a repeat only gets the recorded reply."""
    ce_id = received.record.ce_id
    recorded = None if ce_id is None else backfills.command_outcome(tx.conn, received.key, ce_id)
    if recorded is not None:
        answer = REGISTRY[recorded.answer_type].model_validate(recorded.answer)
    else:
        answer = _carry_out(tx, received.key, command, ce_id)
        if ce_id is not None:
            data = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
            backfills.record_command(tx.conn, received.key, ce_id, Outcome(answer.type, data))
    tx.emit(Topic.BACKFILL_EVENTS, received.key, answer, reply_to=received.record)


def _carry_out(tx: Transaction, id: str, command: Command | RunCancelRequested, ce_id: str | None) -> Message:
    row = backfills.lock(tx.conn, id, wait=True)
    if isinstance(command, RunCancelRequested):
        return cancel_runs(tx, id, row, command, ce_id)
    state = None if row is None else row["state"]
    decision = answer_command(command, state)
    match decision:
        case Refuse(message):
            return BackfillCommandRejected(backfill_id=id, command=command.type, message=message)
        case Unchanged(where):
            assert row is not None
            return _EVENTS[where](backfill_id=id, pipeline=row["pipeline"])
        case Enter(to):
            assert row is not None and state is not None
            if not backfills.move(tx.conn, id, to, state, _values(tx, id, to)):
                raise Conflict(f"backfill {id} is no longer {state}")
            emit_state(tx, dict(row), to, database_now(tx.conn))
            tx.schedule_check(id)
            return _EVENTS[to](backfill_id=id, pipeline=row["pipeline"])


def _values(tx: Transaction, id: str, to: BackfillState) -> dict[str, Any]:
    if to == S.RUNNING:
        # A resume accepts the failures committed so far, and none committed later.
        return {"resumed_at": FromNow(), "failed_before": count_failed(tx.conn, id)}
    return {"cancel_cause": str(CancelCause.USER)} if to == S.CANCELLING else {}
