"""One backfill, or a plan, as a grid of its intervals: columns of equal length, for hundreds of thousands of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Connection, cast, func, select

from retrofill_core.domain.planning import SkipReason
from retrofill_core.domain.run import RunState
from retrofill_core.store.tables import backfill_interval, run
from retrofill_tools.client.backfills import Backfill
from retrofill_tools.client.intervals import PRESENT_RUN
from retrofill_tools.client.previews import WILL_RUN, Preview

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
        **moments(starts, ends),
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
        **moments(starts, ends),
        "states": "".join(letter_of[outcome] for outcome in preview.outcomes),
        "letters": letters,
        "skipped": list(SKIPPED),
    }


def moments(starts: list[int], ends: list[int]) -> dict[str, Any]:
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
