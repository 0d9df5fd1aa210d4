"""Data intervals: the history of one over all backfills, and those of a backfill by day or as a grid."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, func, select

from retrofill_core.domain.run import RunState
from retrofill_core.store.conditions import overlaps
from retrofill_core.store.tables import backfill, backfill_interval, run
from retrofill_tools.client.documents import names

# Longer ranges have a cell per month.
MAX_MONTHS = 36
# Of an interval, which names its first run: a retry may have replaced that.
PRESENT_RUN = (
    (run.c.backfill_id == backfill_interval.c.backfill_id)
    & (run.c.interval_start == backfill_interval.c.interval_start)
    & run.c.superseded_by.is_(None)
)


@dataclass(frozen=True)
class FinishedRun:
    """Who processed an interval when, and what that ``published``."""

    run_id: int
    interval_start: datetime
    interval_end: datetime
    backfill_id: str
    triggered_by: str | None
    state: str
    attempt: int
    finished_at: datetime
    code_sha256: str | None
    restores: int | None
    undone_by: int | None
    attempt_id: int | None
    published: list[dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """A day or month that has intervals: their runs by state, and as ``skipped`` those without."""

    start: date
    by_state: dict[str, int]


@dataclass(frozen=True)
class Calendar:
    """``unit``: day or month."""

    unit: str
    cells: list[Cell]


def history(conn: Connection, pipeline_no: int, start: datetime, end: datetime) -> list[FinishedRun]:
    """The finished runs of a pipeline whose intervals overlap ``[start, end)``.

    By the interval's start; of several that begin then, the longest first; of the same interval, the latest last.
    """
    of_it = {
        "run_id": run.c.id,
        "triggered_by": backfill.c.triggered_by,
        # Its output may have been published by another attempt than the one that staged it.
        "attempt_id": func.coalesce(run.c.accepted_attempt, run.c.attempt_id),
    }
    found = (
        select(*(of_it[name] if name in of_it else run.c[name] for name in names(FinishedRun)))
        .join_from(run, backfill, backfill.c.id == run.c.backfill_id)
        .where(
            overlaps(run, pipeline_no, start, end),
            # Only these are in the index.
            run.c.state.in_([RunState.FAILED, RunState.SUCCEEDED]),
        )
        .order_by(run.c.interval_start, run.c.interval_end.desc(), run.c.id)
    )
    return [FinishedRun(*(*facts, (published or {}).get("outputs", []))) for *facts, published in conn.execute(found)]


def calendar(conn: Connection, backfill_id: str, zone: str, first: datetime, end: datetime) -> Calendar:
    """The intervals of a backfill, by the time zone's days or months in which they start. None if it was purged."""
    begin, last = (at.astimezone(ZoneInfo(zone)) for at in (first, end))
    months = (last.year - begin.year) * 12 + last.month - begin.month
    unit = "day" if months <= MAX_MONTHS else "month"
    t = backfill_interval
    start = func.date_trunc(unit, func.timezone(zone, t.c.interval_start)).label("start")
    state = func.coalesce(run.c.state, "skipped").label("of_state")
    found = (
        select(start, state, func.count())
        .select_from(t.outerjoin(run, PRESENT_RUN))
        .where(t.c.backfill_id == backfill_id)
        # By name: the parameters of an expression are different ones each time.
        .group_by("start", "of_state")
        .order_by("start")
    )
    by_start: dict[datetime, dict[str, int]] = {}
    for at, of_state, number in conn.execute(found):
        by_start.setdefault(at, {})[of_state] = number
    return Calendar(unit, [Cell(at.date(), by_state) for at, by_state in by_start.items()])
