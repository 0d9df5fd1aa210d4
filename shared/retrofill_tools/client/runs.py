"""Runs: those of a backfill, and all that is known about one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NotRequired, TypedDict

from sqlalchemy import ColumnElement, Connection, exists, func, select, true, union_all
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, aggregate_order_by

from retrofill.errors import head_of
from retrofill.states import AttemptMode, TaskState
from retrofill_core.store.conditions import has_failed
from retrofill_core.store.run_commands import ASKED
from retrofill_core.store.tables import attempt, backfill, run, run_cancel, task_run
from retrofill_tools.client.attempts import Attempt, find_attempts
from retrofill_tools.client.deadlines import Callback, Deadline, find_callbacks, find_deadlines
from retrofill_tools.client.documents import names
from retrofill_tools.client.intervals import FinishedRun, history
from retrofill_tools.client.pipelines import StoredDefinition

# Of a task in the pipeline's definition.
TASK = ("name", "kind", "after", "trigger_rule", "retries", "timeout_seconds")
# Deadlines and callbacks of one run.
MOST = 100
# Kinds of failures, and the runs of each that are named; the part of an error's first line that is compared.
KINDS, NAMED, LINE = 20, 100, 300
# Another interval of the pipeline begins later than that.
_LEAST = timedelta(microseconds=1)


class Loss(TypedDict):
    """A driver was lost with a run, the ``attempt``-th time that it began."""

    attempt: int
    reason: str
    # Of an older release, it counted.
    counted: NotRequired[bool]


class Error(TypedDict, total=False):
    """Why a run or task failed."""

    type: str
    message: str
    traceback: str
    # Of one that could not be completed from the run that has all of it.
    same_as_run: int


@dataclass(frozen=True)
class RunSummary:
    """``cancel_requested_at``: when a user asked to cancel this one."""

    id: int
    interval_start: datetime
    interval_end: datetime
    state: str
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    superseded_by: int | None


@dataclass(frozen=True)
class _Run:
    id: int
    backfill_id: str
    pipeline: str
    interval_start: datetime
    interval_end: datetime
    state: str
    attempt: int
    attempt_id: int | None
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lost_at: datetime | None
    lost_attempts: int
    range_limit: int | None
    superseded_by: int | None
    code_sha256: str | None
    outputs: dict[str, Any] | None
    error: Error | None
    publish_after: datetime | None
    publish_error: Error | None


@dataclass(frozen=True)
class Run(_Run):
    """A run as it is stored, with its backfill's state and ``definition``."""

    pipeline_no: int
    position: int
    losses: dict[str, list[Loss]]
    published: dict[str, Any] | None
    backfill_state: str
    cancel_requested_at: datetime | None
    definition: StoredDefinition


@dataclass(frozen=True)
class TaskRun:
    """A task in one of the times that its run began."""

    attempt: int
    task: str
    state: str
    try_number: int
    started_at: datetime | None
    finished_at: datetime | None
    error: Error | None


@dataclass(frozen=True)
class FullRun(_Run):
    """A run with its ``attempts`` and the ``tasks`` of each time it began.

    ``graph``: the tasks of its pipeline, as defined; ``deadlines`` and ``callbacks``: its own; ``history``: all
    finished runs of its interval; ``replaced_changes``: what somebody changed in the moment of its publication;
    ``cancel_requested_at``: when a user asked to cancel this one.
    """

    timezone: str
    backfill_state: str
    cancel_requested_at: datetime | None
    losses: list[Loss]
    replaced_changes: list[str]
    attempts: list[Attempt]
    tasks: list[TaskRun]
    graph: list[dict[str, Any]]
    deadlines: list[Deadline]
    callbacks: list[Callback]
    history: list[FinishedRun]


@dataclass(frozen=True)
class NamedRun:
    """What commands name a run by."""

    id: int
    interval_start: datetime


@dataclass(frozen=True)
class FailedTask:
    """A task that failed when its run began for the last time."""

    task: str
    try_number: int
    error: Error | None


@dataclass(frozen=True)
class FailedRun:
    """A failed run that was not retried."""

    id: int
    interval_start: datetime
    interval_end: datetime
    finished_at: datetime
    attempt: int
    code_sha256: str | None
    error: Error | None
    losses: list[Loss]
    failed_tasks: list[FailedTask]


@dataclass(frozen=True)
class Failure:
    """The failed runs with one error, apart from the numbers in its message, of which the earliest is the ``example``.

    ``task``: the one that failed first, if one did. ``named``: the runs, or the first ``NAMED`` of them. ``range_end``: of
    their latest interval.
    """

    type: str | None
    message: str
    task: str | None
    runs: int
    range_end: datetime
    named: list[NamedRun]
    example: FailedRun


@dataclass(frozen=True)
class Suspect:
    """An unfinished run with which a driver was lost."""

    id: int
    interval_start: datetime
    state: str
    lost_attempts: int
    losses: list[Loss]


def find_run(conn: Connection, id: int) -> Run | None:
    elsewhere = {
        **{name: backfill.c[name] for name in ("pipeline", "definition")},
        "backfill_state": backfill.c.state,
        "cancel_requested_at": run_cancel.c.requested_at,
    }
    columns = [elsewhere[name] if name in elsewhere else run.c[name] for name in names(Run)]
    of_backfill = run.join(backfill, backfill.c.id == run.c.backfill_id).outerjoin(run_cancel, ASKED)
    found = select(*columns).select_from(of_backfill).where(run.c.id == id)
    row = conn.execute(found).first()
    return None if row is None else Run(*(*row[:-1], StoredDefinition(row[-1])))


def first_run(conn: Connection, of: Attempt) -> Run | None:
    """The first run that an attempt was given; ``None`` if it was purged."""
    found = (
        select(run.c.id)
        # Of a run and those that replaced it, the last one that existed.
        .where(run.c.backfill_id == of.backfill_id, run.c.position == of.position, run.c.queued_at <= of.claimed_at)
        .order_by(run.c.id.desc())
        .limit(1)
    )
    id = conn.execute(found).scalar()
    return None if id is None else find_run(conn, id)


def find_runs(conn: Connection, backfill_id: str, states: Sequence[str], limit: int) -> list[RunSummary]:
    """Runs in logical-date order."""
    columns = (
        run_cancel.c.requested_at if name == "cancel_requested_at" else run.c[name] for name in names(RunSummary)
    )
    found = (
        select(*columns)
        .select_from(run.outerjoin(run_cancel, ASKED))
        .where(run.c.backfill_id == backfill_id)
        .order_by(run.c.interval_start, run.c.id)
        .limit(limit)
    )
    return [RunSummary(*row) for row in conn.execute(found.where(run.c.state.in_(states)) if states else found)]


def runs_of_dates(conn: Connection, backfill_id: str, start: datetime, end: datetime) -> list[int]:
    """The ids of a backfill's runs whose intervals begin in ``[start, end)``, in order.

    Without those that were replaced by a retry.
    """
    found = select(run.c.id).where(
        run.c.backfill_id == backfill_id,
        run.c.interval_start >= start,
        run.c.interval_start < end,
        run.c.superseded_by.is_(None),
    )
    return list(conn.execute(found.order_by(run.c.interval_start)).scalars())


def present_runs(
    conn: Connection,
    backfill_id: str,
    states: Sequence[str],
    chosen: Sequence[int] | tuple[datetime, datetime],
    limit: int,
    *,
    to_cancel: bool = False,
) -> list[NamedRun]:
    """A backfill's runs in these states, in the order of their intervals.

    ``chosen``: their ids, or the first and the last logical date, inclusive. ``to_cancel``: without those that are
    already being cancelled.
    """
    found = select(run.c.id, run.c.interval_start).where(
        run.c.backfill_id == backfill_id, run.c.state.in_(states), run.c.superseded_by.is_(None)
    )
    if isinstance(chosen, tuple):
        found = found.where(run.c.interval_start.between(*chosen))
    else:
        found = found.where(run.c.id == func.any(list(chosen)))
    if to_cancel:
        found = found.where(~exists().where(ASKED))
    return [NamedRun(*row) for row in conn.execute(found.order_by(run.c.interval_start).limit(limit))]


def failed_runs(
    conn: Connection, backfill_id: str, limit: int, among: Collection[int] | None = None
) -> list[FailedRun]:
    """Failed runs that were not retried, in logical-date order; with ``among`` only those of these ids."""
    times = (run.c.interval_start, run.c.interval_end, run.c.finished_at)
    found = (
        select(run.c.id, *times, run.c.attempt, run.c.code_sha256, run.c.error, run.c.losses)
        .where(run.c.backfill_id == backfill_id, has_failed(run))
        .order_by(run.c.interval_start)
        .limit(limit)
    )
    if among is not None:
        found = found.where(run.c.id == func.any(list(among)))
    rows = conn.execute(found).all()
    tasks = _failed_tasks(conn, [row.id for row in rows])
    whole = complete(conn, [row.error for row in rows])
    return [
        FailedRun(*(*facts, error, _last(losses), tasks.get(facts[0], [])))
        for (*facts, _, losses), error in zip(rows, whole, strict=True)
    ]


def _failed_tasks(conn: Connection, runs: Sequence[int]) -> dict[int, list[FailedTask]]:
    found = (
        select(task_run.c.run_id, task_run.c.task, task_run.c.try_number, task_run.c.error)
        .join(run, (run.c.id == task_run.c.run_id) & (run.c.attempt == task_run.c.attempt))
        .where(task_run.c.run_id == func.any(list(runs)), task_run.c.state == TaskState.FAILED)
        .order_by(task_run.c.run_id, task_run.c.finished_at)
    )
    rows = conn.execute(found).all()
    tasks: dict[int, list[FailedTask]] = {}
    for (run_id, task, tries, _), error in zip(rows, complete(conn, [row.error for row in rows]), strict=True):
        tasks.setdefault(run_id, []).append(FailedTask(task, tries, error))
    return tasks


_first_failed = (
    select(task_run.c.task, task_run.c.error)
    .where(
        task_run.c.run_id == run.c.id,
        task_run.c.attempt == run.c.attempt,
        task_run.c.state == TaskState.FAILED,
        task_run.c.error.is_not(None),
    )
    .order_by(task_run.c.finished_at)
    .limit(1)
    .lateral("first_failed")
)
_error = func.coalesce(_first_failed.c.error, run.c.error, type_=JSONB())
_line = func.left(func.split_part(_error["message"].astext, "\n", 1), LINE)
# Dates, sizes, ids and ports differ from run to run.
_alike = func.regexp_replace(_line, "[0-9a-fA-F]*[0-9][0-9a-fA-F]*", "#", "g")
_EACH = (
    select(
        *(
            run.c.id,
            run.c.interval_start,
            run.c.interval_end,
            _first_failed.c.task,
            _error["type"].astext.label("type"),
        ),
        *(_line.label("line"), _alike.label("alike")),
    )
    .select_from(run.outerjoin(_first_failed, true()))
    .where(has_failed(run))
)


def failures_of(conn: Connection, backfill_id: str) -> list[Failure]:
    """The failed runs that were not retried, by their errors; most runs first, at most ``KINDS``."""
    each = _EACH.where(run.c.backfill_id == backfill_id).subquery()

    def first(column: ColumnElement[Any], most: int) -> ColumnElement[Any]:
        of_earliest = aggregate_order_by(column, each.c.interval_start)
        return func.array_agg(of_earliest, type_=ARRAY(column.type))[1:most]

    found = (
        select(
            *(each.c.type, each.c.task, func.count(), func.max(each.c.interval_end)),
            *(first(each.c.id, NAMED), first(each.c.interval_start, NAMED), first(each.c.line, 1)),
        )
        .group_by(each.c.type, each.c.task, each.c.alike)
        .order_by(func.count().desc(), func.min(each.c.interval_start))
        .limit(KINDS)
    )
    rows = conn.execute(found).all()
    examples = {run.id: run for run in failed_runs(conn, backfill_id, KINDS, [ids[0] for *_, ids, _, _ in rows])}
    return [
        Failure(type, lines[0] or "", task, runs, end, [*map(NamedRun, ids, starts)], examples[ids[0]])
        for type, task, runs, end, ids, starts, lines in rows
    ]


def _last(losses: dict[str, list[Loss]]) -> list[Loss]:
    return losses.get("last", [])


def suspects(conn: Connection, backfill_id: str, limit: int) -> list[Suspect]:
    """Unfinished runs with which a driver was lost, the next one to be retried first."""
    found = (
        select(run.c.id, run.c.interval_start, run.c.state, run.c.lost_attempts, run.c.losses)
        .where(run.c.backfill_id == backfill_id, run.c.lost_at.is_not(None))
        .order_by(run.c.lost_at, run.c.position)
        .limit(limit)
    )
    return [Suspect(*(*facts, _last(losses))) for *facts, losses in conn.execute(found)]


def describe_run(conn: Connection, of: Run) -> FullRun:
    """All that is known about it."""
    (error,) = complete(conn, [of.error])
    return FullRun(
        **{**{name: getattr(of, name) for name in names(_Run)}, "error": error},
        timezone=of.definition.timezone,
        backfill_state=of.backfill_state,
        cancel_requested_at=of.cancel_requested_at,
        losses=_last(of.losses),
        replaced_changes=[
            each["name"] for each in (of.published or {}).get("outputs", ()) if each.get("replaced_change")
        ],
        attempts=attempts_of(conn, of),
        tasks=_tasks_of(conn, of.id),
        graph=[{name: task.get(name) for name in TASK} for task in of.definition.data.get("tasks", ())],
        deadlines=find_deadlines(conn, {"run_id": of.id}, MOST),
        callbacks=find_callbacks(conn, {"run_id": of.id}, MOST),
        history=history(conn, of.pipeline_no, of.interval_start, of.interval_start + _LEAST),
    )


def attempts_of(conn: Connection, of: Run) -> list[Attempt]:
    """The attempts that had a run, in order; not those of the run that it replaces or that replaced it."""
    mine = [
        attempt.c.backfill_id == of.backfill_id,
        attempt.c.position <= of.position,
        attempt.c.position + attempt.c.runs > of.position,
        attempt.c.claimed_at >= of.queued_at,
    ]
    # A publisher of several attempts spans runs that it does not publish.
    if of.outputs is None:
        mine.append(attempt.c.mode != AttemptMode.PUBLISH)
    if of.finished_at is not None:
        mine.append(attempt.c.claimed_at <= of.finished_at)
    return find_attempts(conn, *mine)


def _tasks_of(conn: Connection, run_id: int) -> list[TaskRun]:
    """The tasks of each time that a run began, in order."""
    t = task_run
    found = select(*(t.c[name] for name in names(TaskRun))).where(t.c.run_id == run_id)
    tasks = [TaskRun(*row) for row in conn.execute(found.order_by(t.c.attempt, t.c.started_at.nulls_last(), t.c.task))]
    whole = complete(conn, [each.error for each in tasks])
    return [replace(each, error=error) for each, error in zip(tasks, whole, strict=True)]


def complete(conn: Connection, errors: Sequence[Error | None]) -> list[Error | None]:
    """Stored errors, each with all that the run has to which it refers, which has the same error."""
    firsts = {error["same_as_run"] for error in errors if error and "same_as_run" in error}
    if not firsts:
        return list(errors)
    found = union_all(
        select(run.c.id, run.c.error).where(run.c.id == func.any(list(firsts)), run.c.error.is_not(None)),
        select(task_run.c.run_id, task_run.c.error).where(
            task_run.c.run_id == func.any(list(firsts)), task_run.c.error.is_not(None)
        ),
    )
    whole = {
        (id, error["type"], head_of(error["message"], error.get("traceback"))): error
        for id, error in conn.execute(found)
    }
    return [error and whole.get((error.get("same_as_run"), error["type"], error["message"]), error) for error in errors]
