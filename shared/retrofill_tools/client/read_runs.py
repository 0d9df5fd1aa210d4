"""Queries about single runs, attempts, and what is active. Run them in a read-only transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, exists, func, select

from retrofill_core.domain.run import RunState
from retrofill_core.store.overlaps import overlaps
from retrofill_core.store.progress import counts
from retrofill_core.store.run_cancels import ASKED
from retrofill_core.store.tables import attempt, backfill, backfill_interval, host, run, task_run

Rows = Sequence[RowMapping]
# Of an interval, which names its first run: a retry may have replaced that.
PRESENT_RUN = (
    (run.c.backfill_id == backfill_interval.c.backfill_id)
    & (run.c.interval_start == backfill_interval.c.interval_start)
    & run.c.superseded_by.is_(None)
)
_OF_ATTEMPT = (
    *(attempt.c.id, attempt.c.backfill_id, attempt.c.mode, attempt.c.position, attempt.c.runs, attempt.c.state),
    *(attempt.c.outcome, attempt.c.host, attempt.c.host_id, attempt.c.claimed_at, attempt.c.began_at),
    *(attempt.c.ended_at, attempt.c.spark_app_id, attempt.c.spark_ui),
    attempt.c.error["message"].astext.label("reason"),
)


def one_run(conn: Connection, id: int) -> RowMapping | None:
    """A run with its backfill's ``pipeline`` and ``definition``."""
    found = select(run, backfill.c.pipeline, backfill.c.definition).join(backfill, backfill.c.id == run.c.backfill_id)
    return conn.execute(found.where(run.c.id == id)).mappings().first()


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
) -> Rows:
    """``id`` and ``interval_start`` of a backfill's runs in these states, in the order of their intervals.

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
    return conn.execute(found.order_by(run.c.interval_start).limit(limit)).mappings().all()


def runs_of_interval(conn: Connection, pipeline_no: int, start: datetime, end: datetime) -> Rows:
    """All finished runs of a pipeline whose intervals overlap ``[start, end)``, by interval, the latest last.

    By the interval's start and, of several that begin then, the longest first.
    """
    found = (
        select(run, backfill.c.pipeline, backfill.c.triggered_by)
        .join(backfill, backfill.c.id == run.c.backfill_id)
        .where(
            overlaps(run, pipeline_no, start, end),
            # Only these are in the index.
            run.c.state.in_([RunState.FAILED, RunState.SUCCEEDED]),
        )
        .order_by(run.c.interval_start, run.c.interval_end.desc(), run.c.id)
    )
    return conn.execute(found).mappings().all()


def one_attempt(conn: Connection, id: int) -> RowMapping | None:
    return conn.execute(select(*_OF_ATTEMPT).where(attempt.c.id == id)).mappings().first()


def attempts_of(conn: Connection, of: RowMapping) -> Rows:
    """The attempts that had a run, in order; not those of the run that it replaces or that replaced it."""
    mine = [
        attempt.c.backfill_id == of["backfill_id"],
        attempt.c.position <= of["position"],
        attempt.c.position + attempt.c.runs > of["position"],
        attempt.c.claimed_at >= of["queued_at"],
    ]
    if of["superseded_by"] is not None:
        mine.append(attempt.c.claimed_at <= of["finished_at"])
    return conn.execute(select(*_OF_ATTEMPT).where(*mine).order_by(attempt.c.id)).mappings().all()


def tasks_of(conn: Connection, run_id: int) -> Rows:
    """The tasks of each time that a run began, in order."""
    t = task_run
    columns = (t.c.attempt, t.c.task, t.c.state, t.c.try_number, t.c.started_at, t.c.finished_at, t.c.error)
    found = select(*columns).where(t.c.run_id == run_id)
    return conn.execute(found.order_by(t.c.attempt, t.c.started_at.nulls_last(), t.c.task)).mappings().all()


def log_addresses(conn: Connection, of: RowMapping) -> list[str]:
    """Where the log of an attempt may be: its host, then others on the same machine. Only live ones."""
    machine = of["host"].rpartition("-")[0]
    found = (
        select(host.c.logs)
        .where(
            host.c.lease_until > func.clock_timestamp(),
            host.c.logs.is_not(None),
            # An attempt of a release without hosts has no id of one.
            (host.c.id == (of["host_id"] or 0)) | host.c.name.startswith(f"{machine}-", autoescape=True),
        )
        .order_by(host.c.id != (of["host_id"] or 0), host.c.id.desc())
    )
    # A run-starter is a host for each pool.
    return list(dict.fromkeys(conn.execute(found).scalars()))


def live_attempts(conn: Connection, limit: int) -> Rows:
    """Live attempts, the oldest first, with their pipeline and how long they have been under way."""
    since = func.clock_timestamp() - func.coalesce(attempt.c.began_at, attempt.c.claimed_at)
    first = run.c.interval_start.label("first_interval")
    found = (
        select(*_OF_ATTEMPT, backfill.c.pipeline, backfill.c.definition, since.label("since"), first)
        .join(backfill, backfill.c.id == attempt.c.backfill_id)
        .outerjoin(
            run,
            (run.c.backfill_id == attempt.c.backfill_id)
            & (run.c.position == attempt.c.position)
            & run.c.superseded_by.is_(None),
        )
        # Live ones have a slot, and only those are in its index.
        .where(attempt.c.slot.is_not(None))
        .order_by(attempt.c.id)
        .limit(limit)
    )
    return conn.execute(found).mappings().all()


def count_active(conn: Connection) -> tuple[int, int]:
    """How many backfills are active, and how many attempts are live."""
    backfills = select(func.count()).select_from(backfill).where(backfill.c.ended_at.is_(None))
    attempts = select(func.count()).select_from(attempt).where(attempt.c.slot.is_not(None))
    found = conn.execute(select(backfills.scalar_subquery(), attempts.scalar_subquery())).one()
    return found[0], found[1]


def attempt_as_json(row: RowMapping) -> dict[str, Any]:
    """One of ``live_attempts`` as data: with its pipeline's ``timezone``, and the ``seconds`` it has been under way."""
    shown = {name: value for name, value in row.items() if name not in ("definition", "since", "position")}
    return {**shown, "timezone": row["definition"].get("timezone", "UTC"), "seconds": row["since"].total_seconds()}


def ids_like(conn: Connection, prefix: str, limit: int) -> list[str]:
    """Ids of backfills with this prefix, active ones first, then the newest."""
    found = select(backfill.c.id).where(backfill.c.id.startswith(prefix, autoescape=True)).limit(limit)
    newest = (backfill.c.ended_at.is_not(None), backfill.c.requested_at.desc(), backfill.c.id)
    return list(conn.execute(found.order_by(*newest)).scalars())


def active_progress(conn: Connection, limit: int) -> list[dict[str, Any]]:
    """Active backfills, newest first, with the number of their runs by state."""
    newest = (
        select(backfill.c.id, backfill.c.pipeline, backfill.c.state, backfill.c.runs, backfill.c.requested_at)
        .where(backfill.c.ended_at.is_(None))
        .order_by(backfill.c.requested_at.desc(), backfill.c.id)
        .limit(limit)
    )
    found = {row["id"]: {**row, "by_state": {}} for row in conn.execute(newest).mappings()}
    for id, by_state in counts(conn, found).items():
        found[id]["by_state"] = by_state
    return list(found.values())


def days(conn: Connection, backfill_id: str, zone: str, unit: str = "day") -> list[dict[str, Any]]:
    """The intervals of a backfill by day or month of their start: ``start`` (a date) and ``by_state``.

    States are the runs' ones, and ``skipped`` for intervals without a run. None if it was purged.
    """
    t = backfill_interval
    start = func.date_trunc(unit, func.timezone(zone, t.c.interval_start)).label("start")
    state = func.coalesce(run.c.state, "skipped").label("of_state")
    found = (
        select(start, state, func.count().label("number"))
        .select_from(t.outerjoin(run, PRESENT_RUN))
        .where(t.c.backfill_id == backfill_id)
        # By name: the parameters of an expression are different ones each time.
        .group_by("start", "of_state")
        .order_by("start")
    )
    by_start: dict[datetime, dict[str, int]] = {}
    for row in conn.execute(found):
        by_start.setdefault(row.start, {})[row.of_state] = row.number
    return [{"start": at.date(), "by_state": states} for at, states in by_start.items()]
