"""Queries of the commands. Run them in a read-only transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, case, exists, func, select

from retrofill.states.attempt import AttemptOutcome
from retrofill.states.task_run import TaskState
from retrofill_core.domain.callback import CallbackState
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.domain.run import RunState
from retrofill_core.store.failures import has_failed
from retrofill_core.store.rows import Planned
from retrofill_core.store.run_cancels import ASKED
from retrofill_core.store.states import in_state
from retrofill_core.store.tables import (
    attempt,
    backfill,
    backfill_interval,
    backfill_request,
    callback,
    deadline,
    pipeline,
    run,
    run_cancel,
    task_run,
    webhook_off,
)

Rows = Sequence[RowMapping]


def pipelines(conn: Connection) -> Rows:
    """Applied pipelines that were not removed, by name."""
    active = (
        select(func.count())
        .where(backfill.c.pipeline_no == pipeline.c.no, backfill.c.ended_at.is_(None))
        .scalar_subquery()
    )
    return _all(
        conn,
        select(pipeline.c.name, pipeline.c.definition, pipeline.c.applied_at, active.label("active_backfills"))
        .where(pipeline.c.removed_at.is_(None))
        .order_by(pipeline.c.name),
    )


def applied_at(conn: Connection, name: str) -> Any:
    """When the pipeline was last applied."""
    return conn.execute(select(pipeline.c.applied_at).where(pipeline.c.name == name)).scalar_one()


def backfills(conn: Connection, of_pipeline: str | None, states: Sequence[str], limit: int) -> Rows:
    """Backfills, newest first, with ``ended_runs``."""
    newest = select(backfill).order_by(backfill.c.requested_at.desc(), backfill.c.id).limit(limit)
    if of_pipeline is not None:
        newest = newest.where(backfill.c.pipeline == of_pipeline)
    if states:
        newest = newest.where(backfill.c.state.in_(states))
    chosen = newest.subquery()
    counted = (
        select(func.count())
        .where(run.c.backfill_id == chosen.c.id, run.c.finished_at.is_not(None), run.c.superseded_by.is_(None))
        .scalar_subquery()
    )
    # In an ended backfill all runs ended, including those purged since.
    ended = case((chosen.c.ended_at.is_not(None), chosen.c.runs), else_=counted)
    return _all(conn, select(chosen, ended.label("ended_runs")).order_by(chosen.c.requested_at.desc(), chosen.c.id))


def one_backfill(conn: Connection, id: str) -> RowMapping | None:
    return conn.execute(select(backfill).where(backfill.c.id == id)).mappings().first()


def planned(row: RowMapping) -> Planned:
    """A whole row of a backfill as the store's type."""
    return Planned(**{each.name: row[each.name] for each in fields(Planned)})


def recorded_answer(conn: Connection, id: str) -> dict[str, Any] | None:
    """The recorded reply to the request with this id."""
    return conn.execute(select(backfill_request.c.answer).where(backfill_request.c.id == id)).scalar()


def purged(conn: Connection, row: RowMapping) -> bool:
    """Whether this backfill was purged. Purging deletes its intervals, which every backfill has."""
    mine = exists().where(backfill_interval.c.backfill_id == row["id"])
    return row["ended_at"] is not None and not conn.execute(select(mine)).scalar_one()


def run_times(conn: Connection, id: str) -> RowMapping:
    """``first_started_at``, ``last_finished_at`` and ``runs_started_again`` of a backfill."""
    return (
        conn.execute(
            select(
                func.min(run.c.started_at).label("first_started_at"),
                func.max(run.c.finished_at).label("last_finished_at"),
                func.count().filter(run.c.attempt > 1).label("runs_started_again"),
            ).where(run.c.backfill_id == id)
        )
        .mappings()
        .one()
    )


def runs_by_code(conn: Connection, id: str) -> dict[str, int]:
    """Number of started runs by code archive of the last attempt that began them;

    ``""`` for code that was not shipped.
    """
    rows = conn.execute(
        select(run.c.code_sha256, func.count().label("number"))
        .where(run.c.backfill_id == id, run.c.attempt > 0, run.c.superseded_by.is_(None))
        .group_by(run.c.code_sha256)
    )
    return {row.code_sha256 or "": row.number for row in rows}


def skipped(conn: Connection, id: str) -> dict[str, int]:
    """Number of intervals without a run, by reason."""
    t = backfill_interval
    rows = conn.execute(
        select(t.c.reason, func.count().label("number"))
        .where(t.c.backfill_id == id, t.c.reason.is_not(None))
        .group_by(t.c.reason)
    )
    return {row.reason: row.number for row in rows}


def runs(conn: Connection, id: str, states: Sequence[str], limit: int) -> Rows:
    """Runs in logical-date order; ``cancel_requested_at``: when a user asked to cancel this one."""
    found = (
        select(run, run_cancel.c.requested_at.label("cancel_requested_at"))
        .select_from(run.outerjoin(run_cancel, ASKED))
        .where(run.c.backfill_id == id)
        .order_by(run.c.interval_start, run.c.id)
        .limit(limit)
    )
    return _all(conn, found.where(run.c.state.in_(states)) if states else found)


def failed_runs(conn: Connection, id: str, limit: int) -> Rows:
    """Failed runs that were not retried, in logical-date order."""
    times = (run.c.interval_start, run.c.interval_end, run.c.finished_at)
    columns = (run.c.id, *times, run.c.attempt, run.c.code_sha256, run.c.error, run.c.losses)
    return _all(
        conn,
        select(*columns).where(run.c.backfill_id == id, has_failed(run)).order_by(run.c.interval_start).limit(limit),
    )


def suspects(conn: Connection, id: str, limit: int) -> Rows:
    """Unfinished runs with which a driver was lost, the next one to be retried first."""
    return _all(
        conn,
        select(run.c.id, run.c.interval_start, run.c.state, run.c.lost_attempts, run.c.losses)
        .where(run.c.backfill_id == id, run.c.lost_at.is_not(None))
        .order_by(run.c.lost_at, run.c.position)
        .limit(limit),
    )


def first_put_off(conn: Connection, id: str) -> RowMapping | None:
    """The first accepted run that publishers could not publish, with ``publish_after`` and ``publish_error``."""
    put_off = (
        select(run.c.id, run.c.publish_after, run.c.publish_error)
        .where(run.c.backfill_id == id, in_state(run, RunState.STAGED), run.c.publish_error.is_not(None))
        .order_by(run.c.position)
        .limit(1)
    )
    return conn.execute(put_off).mappings().first()


def attempts_not_done(conn: Connection, id: str, limit: int) -> Rows:
    """Attempts that did not come to their end, newest first.

    ``first_interval`` and ``last_interval`` are logical dates, ``None`` if the runs were purged.
    """
    first, last = run.alias("first_run"), run.alias("last_run")
    # Of a backfill that runs backwards, the last has the earlier date.
    of_first, of_last = (
        and_(each.c.backfill_id == attempt.c.backfill_id, each.c.position == position, each.c.superseded_by.is_(None))
        for each, position in ((first, attempt.c.position), (last, attempt.c.position + attempt.c.runs - 1))
    )
    dates = (first.c.interval_start, last.c.interval_start)
    return _all(
        conn,
        select(
            *(attempt.c.id, attempt.c.ended_at, attempt.c.outcome, attempt.c.host, attempt.c.runs),
            attempt.c.error["message"].astext.label("reason"),
            func.least(*dates).label("first_interval"),
            func.greatest(*dates).label("last_interval"),
        )
        .select_from(attempt.outerjoin(first, of_first).outerjoin(last, of_last))
        .where(attempt.c.backfill_id == id, attempt.c.outcome != AttemptOutcome.DONE)
        .order_by(attempt.c.id.desc())
        .limit(limit),
    )


def failed_tasks(conn: Connection, runs: Sequence[int]) -> Rows:
    """The tasks that failed when these runs began for the last time."""
    columns = (task_run.c.run_id, task_run.c.task, task_run.c.try_number, task_run.c.error)
    return _all(
        conn,
        select(*columns)
        .join(run, (run.c.id == task_run.c.run_id) & (run.c.attempt == task_run.c.attempt))
        .where(task_run.c.run_id == func.any(list(runs)), task_run.c.state == TaskState.FAILED)
        .order_by(task_run.c.run_id, task_run.c.finished_at),
    )


def deadlines(
    conn: Connection, filters: Mapping[str, str | int | None], limit: int, due_within: timedelta | None = None
) -> Rows:
    """Deadlines, latest first; with ``due_within``, only armed ones due by then, earliest first."""
    found = _deadlines()
    for column, wanted in filters.items():
        if wanted is not None:
            found = found.where(deadline.c[column] == wanted)
    if due_within is None:
        return _all(conn, found.order_by(deadline.c.due_at.desc(), deadline.c.id.desc()).limit(limit))
    soon = found.where(
        deadline.c.state == DeadlineState.ARMED, deadline.c.due_at <= func.clock_timestamp() + due_within
    )
    return _all(conn, soon.order_by(deadline.c.due_at, deadline.c.id).limit(limit))


def one_deadline(conn: Connection, id: int) -> RowMapping | None:
    """A deadline with the outcome of its callback, or of its digest's."""
    called = callback.c.deadline_id == func.coalesce(deadline.c.digest_id, deadline.c.id)
    found = (
        _deadlines()
        .add_columns(
            callback.c.state.label("callback_state"),
            callback.c.attempts.label("callback_attempts"),
            callback.c.last_error.label("callback_error"),
        )
        .outerjoin(callback, called)
        .where(deadline.c.id == id)
    )
    return conn.execute(found).mappings().first()


def _deadlines() -> Select[Any]:
    """Deadlines with their runs. A backfill's deadline has none."""
    return select(deadline, run.c.interval_start, run.c.state.label("run_state")).outerjoin(
        run, run.c.id == deadline.c.run_id
    )


def callbacks(conn: Connection, filters: Mapping[str, str | int | None], limit: int) -> Rows:
    """Callbacks, newest first."""
    found = _callbacks()
    for column, wanted in filters.items():
        if wanted is not None:
            found = found.where(_callback_columns()[column] == wanted)
    return _all(conn, found.order_by(callback.c.deadline_id.desc()).limit(limit))


def one_callback(conn: Connection, id: int) -> RowMapping | None:
    """A callback; ``switched_off_at``: since when its webhook has been disabled."""
    off = (webhook_off.c.url == callback.c.name) & (callback.c.kind == "webhook")
    found = _callbacks().add_columns(webhook_off.c.since.label("switched_off_at")).outerjoin(webhook_off, off)
    return conn.execute(found.where(callback.c.deadline_id == id)).mappings().first()


def failed_callbacks(conn: Connection, pipeline: str | None) -> list[int]:
    """Ids of callbacks that failed, oldest first."""
    failed = select(callback.c.deadline_id).outerjoin(deadline, deadline.c.id == callback.c.deadline_id)
    failed = failed.where(callback.c.state == CallbackState.FAILED).order_by(callback.c.deadline_id)
    if pipeline is not None:
        failed = failed.where(_callback_columns()["pipeline"] == pipeline)
    return list(conn.execute(failed).scalars())


def _callback_columns() -> dict[str, ColumnElement[Any]]:
    """A callback's columns, and those of its deadline: rows from an older version have none of their own."""
    theirs = {name: deadline.c[name] for name in ("alert", "run_id")}
    either = {name: func.coalesce(deadline.c[name], callback.c[name]) for name in ("pipeline", "backfill_id")}
    return {**{column.name: column for column in callback.c}, **theirs, **either}


def _callbacks() -> Select[Any]:
    columns = [column.label(name) for name, column in _callback_columns().items()]
    return select(*columns).outerjoin_from(callback, deadline, deadline.c.id == callback.c.deadline_id)


def _all(conn: Connection, statement: Select[Any]) -> Rows:
    return conn.execute(statement).mappings().all()
