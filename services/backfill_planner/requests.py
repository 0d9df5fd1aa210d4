"""Requests: turns one event into a whole backfill or a rejection, in the batch's transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from backfill_planner.slow import too_slow
from retrofill.system.crash import crash_point
from retrofill.tracing import parent_of, span
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Poison
from retrofill_core.bus.observability import metrics
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import (
    BackfillPlanned,
    BackfillRejected,
    BackfillRequested,
    BackfillUndoRequested,
)
from retrofill_core.contract.base import REGISTRY
from retrofill_core.contract.partitioning import partition_of
from retrofill_core.contract.states import BackfillStateChanged
from retrofill_core.contract.topics import Topic
from retrofill_core.deadlines.arming import Armer
from retrofill_core.deadlines.rows import Subject
from retrofill_core.domain.alert import AT_PLANNING, OF_BACKFILL, finish_by
from retrofill_core.domain.backfill import BackfillState, Publish, ReprocessBehavior
from retrofill_core.domain.deadline import alerts_counting_from, arm_planned, due_at_planning
from retrofill_core.domain.planning import (
    Intervals,
    Plan,
    Reason,
    Rejection,
    find_intervals,
    unknown_pipeline,
)
from retrofill_core.settings import Settings
from retrofill_core.store import backfills, budgets, pipelines, planning
from retrofill_core.store.backfills import Outcome
from retrofill_core.store.clock import database_now
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.undo import Undone
from retrofill_core.store.undo_plans import plan_undo

# Fields added to requests later, and their defaults. A default is not hashed, so the hash of a
# request stays what an older release recorded.
_ADDED_LATER: dict[str, object] = {
    "latest_code": False,
    "batch_size": None,
    "intervals": [],
    "budget": None,
    "publish": "at_once",
    "interval_ends": [],
}
AnyRequest = BackfillRequested | BackfillUndoRequested


@dataclass(frozen=True)
class Target:
    """What a request is about: its pipeline, or the backfill to undo and the pipeline of the undo."""

    stored: StoredPipeline | None
    undone: Undone | None = None


@dataclass(frozen=True)
class Request:
    id: str
    body: AnyRequest
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
    """Data intervals of one step's requests, computed before its transaction because that may take seconds.

    Together they are not more than one request may have, so memory does not grow with the batch.
    """

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._known: dict[tuple[str, object], Intervals | Rejection] = {}
        # Rows that the step's plans write: runs and their deadlines.
        self._rows = 0

    def add(self, stored: StoredPipeline, body: BackfillRequested) -> bool:
        """Compute the intervals of one more request. False: they are too many for the same step."""
        key, rows_of_run = _key(stored, body), 1 + len(stored.definition.deadlines)
        most = max(0, self._max_runs - self._rows) // rows_of_run if self._rows else self._max_runs
        found = self._known.get(key) or find_intervals(stored.definition, body.spans, most)
        runs = len(found.starts) if isinstance(found, Intervals) else 0
        too_many = runs > most or (isinstance(found, Rejection) and found.reason == Reason.TOO_MANY_RUNS)
        if self._rows and too_many:
            return False
        self._known[key] = found
        self._rows += runs * rows_of_run
        return True

    def has(self, stored: StoredPipeline, body: BackfillRequested) -> bool:
        """Whether the intervals were computed, by this definition."""
        return _key(stored, body) in self._known

    def of(self, stored: StoredPipeline, body: BackfillRequested) -> Intervals | Rejection:
        """The intervals of a request, recomputed only if the pipeline has changed since."""
        return self._known.get(_key(stored, body)) or find_intervals(stored.definition, body.spans, self._max_runs)

    def forget(self) -> None:
        self._known.clear()
        self._rows = 0


def _key(stored: StoredPipeline, body: BackfillRequested) -> tuple[str, object]:
    return stored.hash, body.spans


def check_id(key: str, body: AnyRequest) -> None:
    """Raise ``Poison`` if the body has an id other than the key."""
    if body.id is not None and body.id != key:
        raise Poison(f"the key {key!r} differs from the body's id {body.id!r}")


def answer_request(
    tx: Transaction,
    request: Request,
    known: Mapping[str, Outcome],
    target: Target,
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
    with span("plan backfill", parent_of(request.record.headers), pipeline=_pipeline(request, target) or "") as trace:
        return _answer_first(tx, request, target, intervals, settings, partitions, trace)


def _answer_first(
    tx: Transaction,
    request: Request,
    target: Target,
    intervals: KnownIntervals,
    settings: Settings,
    partitions: int,
    trace: str | None,
) -> Outcome:
    answer: BackfillPlanned | BackfillRejected
    decision = _decide(tx.conn, request, target, intervals, settings)
    if isinstance(decision, Rejection):
        answer = BackfillRejected(
            backfill_id=request.id,
            pipeline=_pipeline(request, target),
            reason=decision.reason,
            message=decision.message,
            conflicting_backfill_id=decision.conflicting_backfill_id,
        )
    else:
        answer = _write(tx, request, target, decision, partitions, trace)
    outcome = Outcome(answer.type, answer.model_dump(mode="json", by_alias=True, exclude_none=True), request.hash)
    backfills.record_outcome(tx.conn, request.id, outcome)
    crash_point("plan:outcome-recorded")
    tx.after_commit.append(lambda: _count(answer))
    tx.emit(Topic.BACKFILL_EVENTS, request.id, answer, reply_to=request.record, trace=trace)
    return outcome


def _pipeline(request: Request, target: Target) -> str | None:
    """The name of the pipeline, which may not exist. ``None``: the backfill to undo does not exist."""
    if isinstance(request.body, BackfillRequested):
        return request.body.pipeline
    return None if target.undone is None else target.undone.pipeline


def _count(answer: BackfillPlanned | BackfillRejected) -> None:
    metrics.REQUESTS.labels(answer.type).inc()
    if isinstance(answer, BackfillPlanned):
        metrics.RUNS_PLANNED.inc(answer.runs)


def _decide(
    conn: Connection, request: Request, target: Target, intervals: KnownIntervals, settings: Settings
) -> Plan | Rejection:
    if isinstance(request.body, BackfillUndoRequested):
        made = plan_undo(conn, request.body, target.undone, target.stored, settings.max_plan_runs)
        return made if isinstance(made, Rejection) else too_slow(len(made.skipped), request.timed_out) or made
    return _decide_backfill(conn, request, request.body, target.stored, intervals, settings)


def _decide_backfill(
    conn: Connection,
    request: Request,
    body: BackfillRequested,
    stored: StoredPipeline | None,
    intervals: KnownIntervals,
    settings: Settings,
) -> Plan | Rejection:
    if stored is None:
        return unknown_pipeline(body.pipeline, pipelines.all_names(conn))
    found = intervals.of(stored, body)
    if isinstance(found, Intervals):
        found = too_slow(len(found.starts), request.timed_out) or found
    decision, _ = planning.decide(conn, settings, stored, body, found)
    return decision


def _write(
    tx: Transaction, request: Request, target: Target, made: Plan, partitions: int, trace: str | None
) -> BackfillPlanned:
    """Insert all rows of the backfill; returns its event."""
    now = database_now(tx.conn)
    body, stored = request.body, target.stored
    assert stored is not None  # without a pipeline there is no plan
    backwards = isinstance(body, BackfillRequested) and body.run_backwards
    undoes = body.undoes if isinstance(body, BackfillUndoRequested) else None
    most = stored.definition.max_active_runs if target.undone is None else target.undone.max_active_runs
    columns = _columns(request, stored, most, partitions)
    planning.insert_backfill(tx.conn, {**columns, "requested_at": now, "traceparent": trace}, made)
    planned = BackfillStateChanged(
        backfill_id=request.id,
        pipeline=stored.definition.name,
        state=BackfillState.RUNNING,
        range_start=made.intervals.start,
        range_end=made.intervals.end,
        runs=made.runs,
        undoes=undoes,
        runs_by_state={},
        requested_at=now,
        at=now,
    )
    tx.emit(Topic.BACKFILL_STATES, request.id, planned)
    crash_point("plan:backfill-written")
    planning.insert_runs(tx.conn, request.id, stored.no, made, now, backwards=backwards, undoes=undoes)
    crash_point("plan:runs-written")
    if isinstance(body, BackfillRequested):
        _arm_deadlines(tx, request.id, body, stored, made, now, partitions)
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
        max_active_runs=columns["max_active_runs"],
        undoes=undoes,
        planned_at=now,
    )


def _columns(request: Request, stored: StoredPipeline, max_active_runs: int, partitions: int) -> dict[str, Any]:
    body, definition = request.body, stored.definition
    return {
        "id": request.id,
        "pipeline_no": stored.no,
        "pipeline": definition.name,
        "shard": partition_of(request.id, partitions),
        "max_active_runs": body.max_active_runs or max_active_runs,
        "on_run_failure": str(body.on_run_failure),
        "triggered_by": body.triggered_by,
        "definition": definition.as_json(),
        "review": body.publish == Publish.REVIEW,
        **(_of_undo(body) if isinstance(body, BackfillUndoRequested) else _of_backfill(body)),
    }


def _of_undo(body: BackfillUndoRequested) -> dict[str, Any]:
    behavior = str(ReprocessBehavior.COMPLETED)
    return {"undoes": body.undoes, "reprocess_behavior": behavior, "run_backwards": False, "conf": {}}


def _of_backfill(body: BackfillRequested) -> dict[str, Any]:
    return {
        "batch_size": body.batch_size,
        "reprocess_behavior": str(body.reprocess_behavior),
        "run_backwards": body.run_backwards,
        "conf": body.conf,
        "code_follows": body.latest_code,
        **budgets.columns(body.budget),
    }


def _arm_deadlines(
    tx: Transaction,
    id: str,
    body: BackfillRequested,
    stored: StoredPipeline,
    made: Plan,
    now: datetime,
    partitions: int,
) -> None:
    """Arm all deadlines whose reference is known at planning."""
    definition = stored.definition
    armer = Armer(tx, id, definition.name, partitions, now)
    of_backfill = alerts_counting_from(definition.deadlines, *OF_BACKFILL)
    if body.finish_by is not None:
        of_backfill.append(finish_by(body.finish_by, body.finish_by_callback))
    for alert in of_backfill:
        armer.arm(alert, [Subject(None, arm_planned(alert, now, now))])
    of_runs = alerts_counting_from(definition.deadlines, *AT_PLANNING)
    starts = made.starts(backwards=body.run_backwards) if of_runs else []
    for alert in of_runs:
        armer.arm_planned(alert, due_at_planning(alert, now), starts)
