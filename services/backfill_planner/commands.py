"""Requests to change an active backfill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from backfill_planner.decide import Approved, Command, Enter, Refuse, Unchanged, answer_command, nothing_to_do
from backfill_planner.progress import move
from backfill_planner.run_commands import cancel_runs, retry_runs
from retrofill_core.bus.handler import Received
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import (
    BackfillApproved,
    BackfillCancelled,
    BackfillCancelling,
    BackfillChanged,
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
from retrofill_core.domain.backfill import BackfillState, Budget, CancelCause
from retrofill_core.store import backfills, pipelines
from retrofill_core.store.backfills import Outcome
from retrofill_core.store.conditions import count_failed
from retrofill_core.store.rows import Planned
from retrofill_core.store.transition import FromNow

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
    answer: Message | Refuse
    match command:
        case _ if row is None:
            answer = Refuse("there is no backfill with this id: 'retrofill backfill list' shows them all")
        case RunCancelRequested():
            answer = cancel_runs(tx, row, command, ce_id)
        case RunRetryRequested():
            answer = retry_runs(tx, row, command, partitions)
        case BackfillChangeRequested():
            answer = change(tx, row, command)
        case _:
            answer = _enter(tx, row, command)
    if isinstance(answer, Refuse):
        return BackfillCommandRejected(backfill_id=id, command=command.type, message=answer.message)
    return answer


def _enter(tx: Transaction, row: Planned, command: Command) -> Message | Refuse:
    """Move the backfill to the state that the command leads to."""
    about = {"backfill_id": row.id, "pipeline": row.pipeline}
    budget = None
    if isinstance(command, BackfillResumeRequested):
        # The one that a resume would go on with.
        budget = backfills.budget_of(row) if command.budget is None else command.budget
    match answer_command(command, row.state, backfills.budget_exceeded(tx.conn, row.id, budget), row.approved):
        case Approved():
            return BackfillApproved(**about, force=row.forced)
        case Unchanged(where):
            return _EVENTS[where](**about)
        case Enter(to):
            move(tx, row, to, _values(tx, row, command, to, budget))
            tx.schedule_check(row.id)
            if isinstance(command, BackfillPublishRequested):
                return BackfillApproved(**about, force=command.force)
            return _EVENTS[to](**about)
        case Refuse() as refused:
            return refused


def _values(
    tx: Transaction, row: Planned, command: Command, to: BackfillState, budget: Budget | None
) -> dict[str, Any]:
    if isinstance(command, BackfillPublishRequested):
        # Ends a review: what waits for it is published.
        return {"approved_at": FromNow(), "approvals": (row.approved or 0) + 1, "forced": command.force}
    if to == S.RUNNING:
        # A resume accepts the failures committed so far, and none committed later.
        accepted = {"resumed_at": FromNow(), "failed_before": count_failed(tx.conn, row.id)}
        return {**accepted, **backfills.budget_columns(budget)}
    return {"cancel_cause": str(CancelCause.USER)} if to == S.CANCELLING else {}
