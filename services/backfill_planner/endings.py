"""Checks end a backfill, or pause or cancel it over a failed run or its budget, and call what its pipeline lists for
its end. Decided from the rows alone, in one transaction.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ValidationError

from backfill_planner.decide import BeginReview, CancelForFailure, End, Pause, judge, why_failed
from backfill_planner.progress import move
from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill_core.bus.handler import RECHECK_SECONDS
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import (
    MAX_LISTED,
    BackfillCancelled,
    BackfillCancelling,
    BackfillEnded,
    BackfillFailed,
    BackfillInReview,
    BackfillPaused,
    BackfillSucceeded,
)
from retrofill_core.contract.topics import Topic
from retrofill_core.deadlines import Listed, expanded, insert_listed, resolve
from retrofill_core.domain.backfill import BackfillState, CancelCause, show_command
from retrofill_core.domain.callback import CallbackRule, Occasion, shown
from retrofill_core.domain.run import RunState
from retrofill_core.domain.templates import in_zone
from retrofill_core.store import backfills, deadlines
from retrofill_core.store.rows import Planned
from retrofill_core.store.sql import database_now

log = get_log(__name__)
_OCCASIONS = {
    BackfillState.SUCCEEDED: Occasion.BACKFILL_SUCCEEDED,
    BackfillState.FAILED: Occasion.BACKFILL_FAILED,
}


def call_for_end(
    tx: Transaction, row: Planned, state: BackfillState, event: BackfillEnded, now: datetime, partitions: int
) -> None:
    """Insert the callbacks listed for the backfill's end. Nothing is listed for a user's cancel.

    Nor for the success of an undo: the data that was announced before is gone.
    """
    occasion = _OCCASIONS.get(state)
    if occasion == Occasion.BACKFILL_SUCCEEDED and row.undoes is not None:
        return
    rules = [] if occasion is None else _rules(row, occasion)
    if occasion is None or not rules:
        return
    fields = in_zone(_fields(row, state, event), row.definition["timezone"])
    body = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    calls = [
        Listed(
            rule,
            place,
            occasion,
            row.id,
            row.pipeline,
            expanded(rule.kwargs, fields, backfill=row.id),
            {**body, "callback": shown(rule.callback.kind, rule.callback.key)},
        )
        for place, rule in enumerate(rules)
    ]
    insert_listed(tx, calls, now, partitions)


def _rules(row: Planned, occasion: Occasion) -> list[CallbackRule]:
    """The list that the backfill was planned with; one planned by an older release has none."""
    try:
        return [CallbackRule.model_validate(each) for each in row.definition.get(f"on_{occasion}", ())]
    except ValidationError as e:
        log.error(
            "callbacks_unreadable",
            backfill=row.id,
            error=first_line(e),
            what_to_do="a newer release planned it: its end is not called; upgrade the planner",
        )
        return []


def _fields(row: Planned, state: BackfillState, event: BackfillEnded) -> dict[str, Any]:
    """The fields that templates may refer to: ``BACKFILL_ENDED_FIELDS``."""
    counts = {
        f"backfill.{end}": event.runs.get(end, 0) for end in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)
    }
    return {
        "pipeline": row.pipeline,
        "backfill.id": row.id,
        "backfill.runs": row.runs,
        "backfill.state": str(state),
        "backfill.ended_at": event.ended_at,
        **counts,
    }


S = BackfillState
_ENDS: dict[BackfillState, type[BackfillEnded]] = {
    S.SUCCEEDED: BackfillSucceeded,
    S.FAILED: BackfillFailed,
    S.CANCELLED: BackfillCancelled,
}


def check(tx: Transaction, id: str, partitions: int) -> None:
    """Check one backfill. A locked one is checked again soon."""
    row = backfills.lock(tx.conn, id, wait=False)
    if row is None:
        if backfills.still_active(tx.conn, [id]):
            tx.schedule_check(id, RECHECK_SECONDS)
        return
    progress = backfills.progress(tx.conn, id)
    match judge(row, progress, backfills.budget_exceeded(tx.conn, id, backfills.budget_of(row))):
        case End(state):
            _end(tx, row, state, partitions)
        case BeginReview(complete):
            _begin_review(tx, row, complete=complete)
        case Pause(cause, message):
            _pause(tx, row, cause, message)
        case CancelForFailure():
            move(tx, row, S.CANCELLING, {"cancel_cause": str(CancelCause.RUN_FAILURE)})
            event = BackfillCancelling(backfill_id=id, pipeline=row.pipeline, cause="run_failure")
            tx.emit(Topic.BACKFILL_EVENTS, id, event)
        case None:
            pass


def _pause(tx: Transaction, row: Planned, cause: Literal["run_failure", "budget"], why: str | None) -> None:
    move(tx, row, S.PAUSED, {})
    crash_point("pause:written")
    event = BackfillPaused(backfill_id=row.id, pipeline=row.pipeline, cause=cause, message=why)
    tx.emit(Topic.BACKFILL_EVENTS, row.id, event)


def _begin_review(tx: Transaction, row: Planned, *, complete: bool) -> None:
    """Wait for a request to publish or discard. Deadlines count the staging of a ``complete`` one as its success."""
    id, now, runs = row.id, database_now(tx.conn), backfills.run_counts(tx.conn, row.id)
    # What is reviewed again was complete before.
    move(tx, row, S.IN_REVIEW, {"staged_at": row.staged_at or now if complete else None}, runs)
    crash_point("review:written")
    changed = backfills.reviewed_again(tx.conn, id)
    event = BackfillInReview(
        backfill_id=id,
        pipeline=row.pipeline,
        runs=runs,
        review=row.approved or 0,
        changed=len(changed),
        changed_intervals=tuple(changed[:MAX_LISTED]),
    )
    tx.emit(Topic.BACKFILL_EVENTS, id, event)
    if complete:
        resolve(tx, deadlines.open_of_backfill(tx.conn, id))


def _end(tx: Transaction, row: Planned, state: BackfillState, partitions: int) -> None:
    now = database_now(tx.conn)
    runs = backfills.run_counts(tx.conn, row.id)
    move(tx, row, state, {"ended_at": now}, runs)
    crash_point("end:written")
    more = {"message": why_failed(runs)} if state == S.FAILED else {}
    event = _ENDS[state](
        backfill_id=row.id,
        pipeline=row.pipeline,
        runs=runs,
        ended_at=now,
        range_start=row.covers.lower,
        range_end=row.covers.upper,
        timezone=row.definition.get("timezone", "UTC"),
        undoes=row.undoes,
        command=show_command(row.id),
        **more,
    )
    tx.emit(Topic.BACKFILL_EVENTS, row.id, event)
    call_for_end(tx, row, state, event, now, partitions)
    resolve(tx, deadlines.open_of_backfill(tx.conn, row.id))
    tx.after_commit.append(lambda: crash_point("end:committed"))
