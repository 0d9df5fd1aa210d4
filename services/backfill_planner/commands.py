"""Commands to active backfills and their runs: carried out, answered again or refused."""

from __future__ import annotations

from typing import Any, get_args

from backfill_planner.changes import change
from backfill_planner.decide import Approved, Command, Enter, Refuse, Unchanged, answer_command
from backfill_planner.run_cancels import cancel_runs
from backfill_planner.run_retries import retry_runs
from backfill_planner.states import move
from retrofill_core.bus.handler import Received
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import (
    BackfillApproved,
    BackfillCancelled,
    BackfillCancelling,
    BackfillChangeRequested,
    BackfillCommandRejected,
    BackfillEvent,
    BackfillPaused,
    BackfillPublishRequested,
    BackfillResumed,
    BackfillResumeRequested,
    RunCancelRequested,
    RunRetryRequested,
)
from retrofill_core.contract.base import REGISTRY, Message
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import BackfillState, CancelCause
from retrofill_core.domain.budget import Budget
from retrofill_core.store import backfills, budgets
from retrofill_core.store.backfills import Outcome
from retrofill_core.store.failures import count_failed
from retrofill_core.store.rows import Planned
from retrofill_core.store.transition import FromNow

S = BackfillState
# The reply to a command that leads to a state.
_EVENTS: dict[BackfillState, type[BackfillEvent]] = {
    S.PAUSED: BackfillPaused,
    S.RUNNING: BackfillResumed,
    S.CANCELLING: BackfillCancelling,
    S.CANCELLED: BackfillCancelled,
}

AnyCommand = Command | RunCancelRequested | RunRetryRequested | BackfillChangeRequested
COMMANDS = get_args(AnyCommand)


def handle_command(tx: Transaction, received: Received, command: AnyCommand, partitions: int) -> None:
    """Carry out one command, identified by its ``ce_id``: a repeat only gets the recorded reply."""
    ce_id = received.record.ce_id
    recorded = None if ce_id is None else backfills.command_outcome(tx.conn, received.key, ce_id)
    if recorded is not None:
        answer = REGISTRY[recorded.answer_type].model_validate(recorded.answer)
    else:
        answer = _carry_out(tx, received.key, command, ce_id, partitions)
        if ce_id is not None:
            data = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
            backfills.record_command(tx.conn, received.key, ce_id, Outcome(answer.type, data))
    tx.emit(Topic.BACKFILL_EVENTS, received.key, answer, reply_to=received.record)


def _carry_out(tx: Transaction, id: str, command: AnyCommand, ce_id: str | None, partitions: int) -> Message:
    row = backfills.lock(tx.conn, id, wait=True)
    match command:
        case RunCancelRequested():
            return cancel_runs(tx, id, row, command, ce_id)
        case RunRetryRequested():
            return retry_runs(tx, id, row, command, partitions)
        case BackfillChangeRequested():
            return change(tx, id, row, command)
        case _:
            return _enter(tx, id, row, command)


def _enter(tx: Transaction, id: str, row: Planned | None, command: Command) -> Message:
    """Move the backfill to the state that the command leads to."""
    state = None if row is None else row.state
    budget = _budget(command, row)
    used_up, approved = budgets.exceeded(tx.conn, id, budget), None if row is None else row.approved
    decision = answer_command(command, state, used_up, approved)
    match decision:
        case Refuse(message):
            return BackfillCommandRejected(backfill_id=id, command=command.type, message=message)
        case Approved():
            assert row is not None
            return BackfillApproved(backfill_id=id, pipeline=row.pipeline, force=row.forced)
        case Unchanged(where):
            assert row is not None
            return _EVENTS[where](backfill_id=id, pipeline=row.pipeline)
        case Enter(to):
            assert row is not None
            move(tx, row, to, _values(tx, row, command, to, budget))
            tx.schedule_check(id)
            if isinstance(command, BackfillPublishRequested):
                return BackfillApproved(backfill_id=id, pipeline=row.pipeline, force=command.force)
            return _EVENTS[to](backfill_id=id, pipeline=row.pipeline)


def _budget(command: Command, row: Planned | None) -> Budget | None:
    """The budget that a resume would go on with."""
    if row is None or not isinstance(command, BackfillResumeRequested):
        return None
    return budgets.of_row(row) if command.budget is None else command.budget


def _values(
    tx: Transaction, row: Planned, command: Command, to: BackfillState, budget: Budget | None
) -> dict[str, Any]:
    if isinstance(command, BackfillPublishRequested):
        # Ends a review: what waits for it is published.
        return {"approved_at": FromNow(), "approvals": (row.approved or 0) + 1, "forced": command.force}
    if to == S.RUNNING:
        # A resume accepts the failures committed so far, and none committed later.
        accepted = {"resumed_at": FromNow(), "failed_before": count_failed(tx.conn, row.id)}
        return {**accepted, **budgets.columns(budget)}
    return {"cancel_cause": str(CancelCause.USER)} if to == S.CANCELLING else {}
