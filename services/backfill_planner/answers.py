"""The answer to a request of any kind: the recorded one, a rejection, or the backfill that it becomes.

All of it happens in the batch's transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from retrofill.system.crash import crash_point
from retrofill.tracing import parent_of, span
from retrofill_core.bus import metrics
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Poison
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import (
    BackfillPlanned,
    BackfillRejected,
    BackfillRequested,
    BackfillUndoRequested,
)
from retrofill_core.contract.base import REGISTRY
from retrofill_core.contract.runs import BackfillStateChanged
from retrofill_core.contract.topics import Topic, partition_of
from retrofill_core.deadlines import Armer, Subject
from retrofill_core.domain.backfill import BackfillState, Publish
from retrofill_core.domain.deadline import DeadlineAlert, arm_planned, due_at_planning
from retrofill_core.domain.planning import Plan, Rejection
from retrofill_core.store import backfills, planning
from retrofill_core.store.backfills import Outcome
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.sql import database_now

Body = TypeVar("Body", bound=BackfillRequested | BackfillUndoRequested)


@dataclass(frozen=True)
class Request(Generic[Body]):
    id: str
    body: Body
    record: Record
    # How often planning it alone timed out.
    timed_out: int = 0

    @property
    def hash(self) -> str:
        """Hash of the body: another request under the same id must have the same.

        Defaults are not hashed, so it stays the same when a release adds a field.
        """
        fields = self.body.model_dump(mode="json", exclude={"id", "in_reply_to"}, exclude_defaults=True)
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Draft:
    """A backfill to insert.

    ``columns``: what only requests of its kind set. ``of_backfill``, ``of_runs``: the alerts whose
    moments are known at planning.
    """

    stored: StoredPipeline
    plan: Plan
    max_active_runs: int
    columns: Mapping[str, Any]
    backwards: bool = False
    undoes: str | None = None
    of_backfill: Sequence[DeadlineAlert] = ()
    of_runs: Sequence[DeadlineAlert] = ()


def answer(
    tx: Transaction,
    request: Request[Body],
    known: Mapping[str, Outcome],
    pipeline: str | None,
    decide: Callable[[], Draft | Rejection],
    partitions: int,
) -> Outcome:
    """Repeat the recorded reply to a request, or ``decide`` and reply. Returns the reply.

    ``pipeline``: its name, whether it exists or not, if it is known.
    """
    if request.body.id is not None and request.body.id != request.id:
        raise Poison(f"the key {request.id!r} differs from the body's id {request.body.id!r}")
    before = known.get(request.id)
    if before is not None:
        if before.body_hash != request.hash:
            raise Poison(f"the id {request.id!r} is already used by a request with another body: use a new id")
        again = REGISTRY[before.answer_type].model_validate(before.answer)
        tx.emit(Topic.BACKFILL_EVENTS, request.id, again, reply_to=request.record)
        return before
    with span("plan backfill", parent_of(request.record.headers), pipeline=pipeline or "") as trace:
        return _answer_first(tx, request, pipeline, decide(), partitions, trace)


def _answer_first(
    tx: Transaction,
    request: Request[Body],
    pipeline: str | None,
    decision: Draft | Rejection,
    partitions: int,
    trace: str | None,
) -> Outcome:
    reply: BackfillPlanned | BackfillRejected
    if isinstance(decision, Rejection):
        reply = BackfillRejected(
            backfill_id=request.id,
            pipeline=pipeline,
            reason=decision.reason,
            message=decision.message,
            conflicting_backfill_id=decision.conflicting_backfill_id,
        )
    else:
        reply = _write(tx, request, decision, partitions, trace)
    outcome = Outcome(reply.type, reply.model_dump(mode="json", by_alias=True, exclude_none=True), request.hash)
    backfills.record_outcome(tx.conn, request.id, outcome)
    crash_point("plan:outcome-recorded")
    tx.after_commit.append(lambda: _count(reply))
    tx.emit(Topic.BACKFILL_EVENTS, request.id, reply, reply_to=request.record, trace=trace)
    return outcome


def _count(reply: BackfillPlanned | BackfillRejected) -> None:
    metrics.REQUESTS.labels(reply.type).inc()
    if isinstance(reply, BackfillPlanned):
        metrics.RUNS_PLANNED.inc(reply.runs)


def _write(
    tx: Transaction, request: Request[Body], draft: Draft, partitions: int, trace: str | None
) -> BackfillPlanned:
    """Insert all rows of the backfill; returns its event."""
    now = database_now(tx.conn)
    body, stored, made = request.body, draft.stored, draft.plan
    columns = {
        "id": request.id,
        "pipeline_no": stored.no,
        "pipeline": stored.definition.name,
        "shard": partition_of(request.id, partitions),
        "max_active_runs": draft.max_active_runs,
        "on_run_failure": str(body.on_run_failure),
        "triggered_by": body.triggered_by,
        "definition": stored.definition.as_json(),
        "review": body.publish == Publish.REVIEW,
        "requested_at": now,
        "traceparent": trace,
        **draft.columns,
    }
    planning.insert_backfill(tx.conn, columns, made)
    planned = BackfillStateChanged(
        backfill_id=request.id,
        pipeline=stored.definition.name,
        state=BackfillState.RUNNING,
        range_start=made.intervals.start,
        range_end=made.intervals.end,
        runs=made.runs,
        undoes=draft.undoes,
        runs_by_state={},
        requested_at=now,
        at=now,
    )
    tx.emit(Topic.BACKFILL_STATES, request.id, planned)
    crash_point("plan:backfill-written")
    planning.insert_runs(tx.conn, request.id, stored.no, made, now, backwards=draft.backwards, undoes=draft.undoes)
    crash_point("plan:runs-written")
    _arm_deadlines(tx, request.id, draft, now, partitions)
    crash_point("plan:deadlines-written")
    return BackfillPlanned(
        backfill_id=request.id,
        pipeline=stored.definition.name,
        range_start=made.intervals.start,
        range_end=made.intervals.end,
        runs=made.runs,
        skipped=made.skipped_counts,
        recognized=len(made.recognized),
        partly_done=len(made.partly_done),
        max_active_runs=draft.max_active_runs,
        pipeline_max_active_runs=stored.definition.max_active_runs,
        undoes=draft.undoes,
        timezone=stored.definition.timezone,
        code_sha256=stored.definition.code.sha256,
        latest_code=draft.columns.get("code_follows", False),
        planned_at=now,
    )


def _arm_deadlines(tx: Transaction, id: str, draft: Draft, now: datetime, partitions: int) -> None:
    armer = Armer(tx, id, draft.stored.definition.name, partitions, now)
    for alert in draft.of_backfill:
        armer.arm(alert, [Subject(None, arm_planned(alert, now, now))])
    starts = draft.plan.starts(backwards=draft.backwards) if draft.of_runs else []
    for alert in draft.of_runs:
        armer.arm_planned(alert, due_at_planning(alert, now), starts)
