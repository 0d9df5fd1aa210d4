"""Requests: turns one event into a whole backfill or a rejection, in the batch's transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from backfill_planner.slow import too_slow
from backfill_planner.states import emit_state
from retrofill.bus.crash import crash_point
from retrofill.bus.envelope import Record
from retrofill.bus.faults import Poison
from retrofill.bus.observability import metrics
from retrofill.bus.transaction import Transaction
from retrofill.contract.backfills import BackfillPlanned, BackfillRejected, BackfillRequested
from retrofill.contract.base import REGISTRY
from retrofill.contract.partitioning import partition_of
from retrofill.contract.topics import Topic
from retrofill.deadlines.arming import Armer
from retrofill.deadlines.rows import Subject
from retrofill.domain.alert import AT_PLANNING, OF_BACKFILL, Reference, check_handled, finish_by
from retrofill.domain.backfill import BackfillState, Publish
from retrofill.domain.deadline import alerts_counting_from, arm, due_at_planning
from retrofill.domain.planning import (
    Intervals,
    Plan,
    Reason,
    Rejection,
    find_intervals,
    past,
    plan,
    unknown_pipeline,
)
from retrofill.settings import Settings
from retrofill.store import backfills, budgets, pipelines, planning
from retrofill.store.backfills import Outcome
from retrofill.store.clock import database_now
from retrofill.store.pipelines import StoredPipeline
from retrofill.tracing import parent_of, span

# Fields added to requests later, and their defaults. A default is not hashed, so the hash of a
# request stays what an older release recorded.
_ADDED_LATER: dict[str, object] = {
    "latest_code": False,
    "batch_size": None,
    "intervals": [],
    "budget": None,
    "publish": "at_once",
}
# What deadlines of the whole backfill count from, given when it was planned.
_BACKFILL_REFERENCES: dict[Reference, Callable[[datetime], datetime]] = {
    Reference.BACKFILL_REQUESTED_AT: lambda planned_at: planned_at,
}
check_handled(_BACKFILL_REFERENCES, OF_BACKFILL)


@dataclass(frozen=True)
class Request:
    id: str
    body: BackfillRequested
    record: Record
    # How often planning it alone timed out.
    timed_out: int = 0

    @property
    def hash(self) -> str:
        """Hash of the body: another request under the same id must have the same."""
        fields = self.body.model_dump(mode="json", exclude={"id", "in_reply_to"})
        fields = {
            name: value for name, value in fields.items() if name not in _ADDED_LATER or value != _ADDED_LATER[name]
        }
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class KnownIntervals:
    """Data intervals, computed before the transaction because that may take seconds."""

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._known: dict[tuple[str, object], Intervals | Rejection] = {}

    def of(self, stored: StoredPipeline, body: BackfillRequested) -> Intervals | Rejection:
        """The intervals of a request, recomputed only if the pipeline has changed since."""
        key = (stored.hash, body.spans)
        if key not in self._known:
            self._known[key] = find_intervals(stored.definition, body.spans, self._max_runs)
        return self._known[key]

    def forget(self) -> None:
        self._known.clear()


def check_id(key: str, body: BackfillRequested) -> None:
    """Raise ``Poison`` if the body has an id other than the key."""
    if body.id is not None and body.id != key:
        raise Poison(f"the key {key!r} differs from the body's id {body.id!r}")


def answer_request(
    tx: Transaction,
    request: Request,
    known: Mapping[str, Outcome],
    stored: StoredPipeline | None,
    intervals: KnownIntervals,
    settings: Settings,
    partitions: int,
) -> Outcome:
    """Plan one request, or repeat its recorded reply. Returns the reply."""
    check_id(request.id, request.body)
    before = known.get(request.id)
    if before is not None:
        if before.body_hash != request.hash:
            raise Poison(f"the id {request.id!r} is already used by a request with another body: use a new id")
        answer = REGISTRY[before.answer_type].model_validate(before.answer)
        tx.emit(Topic.BACKFILL_EVENTS, request.id, answer, reply_to=request.record)
        return before
    with span("plan backfill", parent_of(request.record.headers), pipeline=request.body.pipeline) as trace:
        return _answer_first(tx, request, stored, intervals, settings, partitions, trace)


def _answer_first(
    tx: Transaction,
    request: Request,
    stored: StoredPipeline | None,
    intervals: KnownIntervals,
    settings: Settings,
    partitions: int,
    trace: str | None,
) -> Outcome:
    answer: BackfillPlanned | BackfillRejected
    decision = _decide(tx.conn, request, stored, intervals, settings)
    if isinstance(decision, Rejection):
        answer = BackfillRejected(
            backfill_id=request.id,
            pipeline=request.body.pipeline,
            reason=decision.reason,
            message=decision.message,
            conflicting_backfill_id=decision.conflicting_backfill_id,
        )
    else:
        assert stored is not None  # without a pipeline there is no plan
        answer = _write(tx, request, stored, decision, partitions, trace)
    outcome = Outcome(answer.type, answer.model_dump(mode="json", by_alias=True, exclude_none=True), request.hash)
    backfills.record_outcome(tx.conn, request.id, outcome)
    crash_point("plan:outcome-recorded")
    tx.after_commit.append(lambda: _count(answer))
    tx.emit(Topic.BACKFILL_EVENTS, request.id, answer, reply_to=request.record, trace=trace)
    return outcome


def _count(answer: BackfillPlanned | BackfillRejected) -> None:
    metrics.REQUESTS.labels(answer.type).inc()
    if isinstance(answer, BackfillPlanned):
        metrics.RUNS_PLANNED.inc(answer.runs)


def _decide(
    conn: Connection, request: Request, stored: StoredPipeline | None, intervals: KnownIntervals, settings: Settings
) -> Plan | Rejection:
    size = len(json.dumps(request.body.conf))
    if size > settings.max_conf_bytes:
        return Rejection(
            Reason.CONF_TOO_LARGE,
            f"conf has {size:,} bytes as JSON, more than {settings.max_conf_bytes:,}: store the data where tasks can read it",
        )
    if stored is None:
        return unknown_pipeline(request.body.pipeline, pipelines.all_names(conn))
    now = database_now(conn)
    if (too_late := past(request.body.finish_by, request.body.budget_until, now)) is not None:
        return too_late
    found = intervals.of(stored, request.body)
    if isinstance(found, Rejection):
        return found
    refused = too_slow(len(found.starts), request.timed_out)
    if refused is not None:
        return refused
    history = planning.history(conn, stored.no, found)
    return plan(stored.definition, found, history, request.body.reprocess_behavior, now)


def _write(
    tx: Transaction, request: Request, stored: StoredPipeline, made: Plan, partitions: int, trace: str | None
) -> BackfillPlanned:
    """Insert all rows of the backfill; returns its event."""
    now = database_now(tx.conn)
    columns = _columns(request, stored, partitions)
    row = planning.insert_backfill(tx.conn, {**columns, "requested_at": now, "traceparent": trace}, made)
    emit_state(tx, row, BackfillState.RUNNING, now)
    crash_point("plan:backfill-written")
    planning.insert_runs(tx.conn, request.id, stored.no, made, now, backwards=request.body.run_backwards)
    crash_point("plan:runs-written")
    _arm_deadlines(tx, request, stored, made, now, partitions)
    crash_point("plan:deadlines-written")
    return BackfillPlanned(
        backfill_id=request.id,
        pipeline=stored.definition.name,
        range_start=made.intervals.start,
        range_end=made.intervals.end,
        runs=made.runs,
        skipped=made.skipped_counts,
        max_active_runs=columns["max_active_runs"],
        planned_at=now,
    )


def _columns(request: Request, stored: StoredPipeline, partitions: int) -> dict[str, Any]:
    body, definition = request.body, stored.definition
    return {
        "id": request.id,
        "pipeline_no": stored.no,
        "pipeline": definition.name,
        "shard": partition_of(request.id, partitions),
        "max_active_runs": body.max_active_runs or definition.max_active_runs,
        "batch_size": body.batch_size,
        "reprocess_behavior": str(body.reprocess_behavior),
        "run_backwards": body.run_backwards,
        "on_run_failure": str(body.on_run_failure),
        "conf": body.conf,
        "triggered_by": body.triggered_by,
        "definition": definition.as_json(),
        "code_follows": body.latest_code,
        "review": body.publish == Publish.REVIEW,
        **budgets.columns(body.budget),
    }


def _arm_deadlines(
    tx: Transaction, request: Request, stored: StoredPipeline, made: Plan, now: datetime, partitions: int
) -> None:
    """Arm all deadlines whose reference is known at planning."""
    definition = stored.definition
    armer = Armer(tx, request.id, definition.name, partitions, now)
    for alert in alerts_counting_from(definition.deadlines, *OF_BACKFILL):
        armer.arm(alert, [Subject(None, arm(alert, _BACKFILL_REFERENCES[alert.reference](now), now))])
    if request.body.finish_by is not None:
        alert = finish_by(request.body.finish_by, request.body.finish_by_callback)
        armer.arm(alert, [Subject(None, arm(alert, request.body.finish_by, now))])
    of_runs = alerts_counting_from(definition.deadlines, *AT_PLANNING)
    starts = made.starts(backwards=request.body.run_backwards) if of_runs else []
    for alert in of_runs:
        armer.arm_planned(alert, due_at_planning(alert, now), starts)
