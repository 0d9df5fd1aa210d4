"""Data intervals: the history of one over all backfills, and those of a backfill by day or as a grid."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import BigInteger, Connection, cast, func, select

from retrofill_core.domain.planning import SkipReason
from retrofill_core.domain.run import RunState
from retrofill_core.store.overlaps import overlaps
from retrofill_core.store.tables import backfill, backfill_interval, run
from retrofill_tools.client.backfills import Backfill
from retrofill_tools.client.documents import names
from retrofill_tools.client.previews import WILL_RUN, Preview

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


# One letter for what became of an interval.
RUNS = {
    "q": RunState.QUEUED,
    "t": RunState.STARTING,
    "r": RunState.RUNNING,
    "p": RunState.PUBLISHING,
    "g": RunState.STAGED,
    "s": RunState.SUCCEEDED,
    "f": RunState.FAILED,
    "c": RunState.CANCELLED,
}
SKIPPED = {
    "-": SkipReason.ALREADY_EXISTS,
    "n": SkipReason.NOT_OVER_YET,
    "o": SkipReason.OUTSIDE_DATES,
    "e": SkipReason.NOT_PUBLISHED,
    "a": SkipReason.PUBLISHED_AGAIN,
    "u": SkipReason.UNDONE,
}
LETTERS = {letter: str(meaning) for letter, meaning in (RUNS | SKIPPED).items()}
_LETTER_OF = {meaning: letter for letter, meaning in LETTERS.items()}
UNKNOWN = "?"
# Of a plan: an interval that would get a run.
WOULD_RUN = "w"
_EACH = (
    select(
        cast(func.extract("epoch", backfill_interval.c.interval_start), BigInteger).label("start"),
        cast(func.extract("epoch", backfill_interval.c.interval_end), BigInteger).label("end"),
        func.coalesce(run.c.state, backfill_interval.c.reason).label("what"),
        func.coalesce(run.c.id, 0).label("run"),
        func.coalesce(run.c.attempt, 0).label("attempt"),
        func.coalesce(run.c.attempt_id, 0).label("batch"),
        run.c.range_limit.label("limit"),
    )
    .select_from(backfill_interval.outerjoin(run, PRESENT_RUN))
    .order_by(backfill_interval.c.interval_start)
)
_COLUMNS = ("start", "end", "what", "run", "attempt", "batch", "limit")


def grid_of_backfill(conn: Connection, of: Backfill) -> dict[str, Any]:
    """The intervals of a backfill in their order; none if it was purged.

    ``starts`` and ``ends`` are epoch seconds; ``ends`` is ``None`` if each interval ends where the
    next one begins. ``limits``: by index, the most runs of a batch with that run, after a split.
    """
    found = _columns(conn, of.id)
    starts, ends = found.start or [], found.end or []
    return {
        "id": of.id,
        "pipeline": of.pipeline,
        "state": of.state,
        "schedule": of.definition.data.get("schedule"),
        "timezone": of.definition.timezone,
        "purged": not starts,
        **_moments(starts, ends),
        "states": "".join(_LETTER_OF.get(each, UNKNOWN) for each in found.what or ()),
        "letters": LETTERS,
        "skipped": list(SKIPPED),
        "runs": found.run or [],
        "attempts": found.attempt or [],
        "batches": found.batch or [],
        "limits": {index: most for index, most in enumerate(found.limit or ()) if most is not None},
    }


def grid_of_plan(preview: Preview) -> dict[str, Any]:
    """The intervals of a plan in the same shape, without runs."""
    made = preview.plan.intervals
    starts, ends = ([int(each.timestamp()) for each in moments] for moments in (made.starts, made.ends))
    letters = {WOULD_RUN: WILL_RUN, **{letter: str(reason) for letter, reason in SKIPPED.items()}}
    letter_of = {outcome: letter for letter, outcome in letters.items()}
    return {
        "schedule": preview.definition.schedule,
        "timezone": preview.definition.timezone,
        **_moments(starts, ends),
        "states": "".join(letter_of[outcome] for outcome in preview.outcomes),
        "letters": letters,
        "skipped": list(SKIPPED),
    }


def _moments(starts: list[int], ends: list[int]) -> dict[str, Any]:
    """When the intervals are; without gaps, the last end is enough."""
    return {
        "starts": starts,
        "ends": None if starts[1:] == ends[:-1] else ends,
        "end": ends[-1] if ends else None,
    }


def _columns(conn: Connection, id: str) -> Any:
    """One row with an array per column: a tenth of the time that as many rows take."""
    # Aggregates read a sorted subquery in its order.
    each = _EACH.where(backfill_interval.c.backfill_id == id).subquery()
    return conn.execute(select(*(func.array_agg(each.c[name]).label(name) for name in _COLUMNS))).one()
