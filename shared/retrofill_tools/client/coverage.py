"""The coverage of a pipeline: the present state of each of its intervals, over all backfills, and whose code made it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from datetime import date, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Intervals
from retrofill_core.domain.run import UNFINISHED, Cover, RunState, Stretch, between, covers, latest
from retrofill_core.domain.schedule import Ticks, TooManyIntervals, boundaries, range_bound
from retrofill_core.store import planning
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.sql import in_state
from retrofill_core.store.tables import run
from retrofill_tools.client.grid import RUNS, moments

# Most intervals: of a pipeline with more, the latest.
MOST = 20_000
NEVER, PARTLY = "never run", "done in part"
# One letter for the present state of an interval.
LETTERS = {**{letter: str(state) for letter, state in RUNS.items()}, ".": NEVER, "h": PARTLY}
_LETTER_OF = {state: letter for letter, state in LETTERS.items()}
# An interval that nobody has processed.
NO_RUN = 0


class _About(NamedTuple):
    """Of a run."""

    backfill_id: str | None = None
    code_sha256: str | None = None
    finished_at: datetime | None = None


_NOTHING = _About()


def coverage_of_pipeline(conn: Connection, stored: StoredPipeline, now: datetime) -> dict[str, Any]:
    """The intervals of a pipeline until ``now``, as its present schedule makes them, with the latest run of each.

    ``runs``: ids, 0 for none; ``backfill`` and ``code``: places in ``backfills`` and ``codes``, -1 for none;
    ``finished``: epoch seconds, 0 for none. ``present_code``: that of a new request. ``cut``: whether earlier intervals
    are left out.
    """
    definition = stored.definition
    found, cut = intervals_until(definition, _first(conn, stored), now)
    states, runs = _present(conn, stored.no, found)
    about = _about(conn, runs)
    each = [about.get(id, _NOTHING) for id in runs]
    backfills, of_backfill = _places([run.backfill_id for run in each])
    codes, of_code = _places([run.code_sha256 for run in each])
    return {
        "pipeline": definition.name,
        "schedule": definition.schedule,
        "timezone": definition.timezone,
        "present_code": definition.code.sha256,
        "cut": cut,
        **moments(*([int(at.timestamp()) for at in side] for side in (found.starts, found.ends))),
        "states": "".join(_LETTER_OF[state] for state in states),
        "letters": LETTERS,
        "runs": runs,
        "backfills": backfills,
        "backfill": of_backfill,
        "codes": codes,
        "code": of_code,
        "finished": [0 if run.finished_at is None else int(run.finished_at.timestamp()) for run in each],
    }


def _first(conn: Connection, stored: StoredPipeline) -> datetime | None:
    """From when the pipeline has intervals; without a start of its own, since its first run."""
    if (start := _bound(stored.definition.start, stored.definition.timezone, end=False)) is not None:
        return start
    mine = (run.c.pipeline_no == stored.no) & in_state(run, RunState.FAILED, RunState.SUCCEEDED)
    return conn.execute(select(func.min(run.c.interval_start)).where(mine)).scalar()


def _bound(given: date | datetime | None, zone: str, *, end: bool) -> datetime | None:
    """One of the pipeline's dates; none at the calendar's edge, which is no bound."""
    with contextlib.suppress(ValueError):
        return None if given is None else range_bound(given, zone, end=end)
    return None


def intervals_until(definition: PipelineDefinition, start: datetime | None, now: datetime) -> tuple[Intervals, bool]:
    """The intervals from ``start`` that are over ``now``, or the latest ``MOST`` or less; whether these are not all."""
    ticks, last = Ticks(definition.schedule, definition.timezone), _bound(definition.end, definition.timezone, end=True)
    end = now if last is None else min(now, last)
    first, cut = start or now, False
    while first <= end:
        try:
            found = boundaries(ticks, first, end, MOST)
        except TooManyIntervals:
            # Half of the time has about half of the intervals.
            first, cut = end - (end - first) / 2, True
            continue
        over = [(begin, until) for begin, until in pairwise(found) if until <= now]
        return Intervals([begin for begin, _ in over], [until for _, until in over]), cut
    return Intervals([], []), cut


def _present(conn: Connection, pipeline_no: int, found: Intervals) -> tuple[list[str], list[int]]:
    """The state of each interval, and the run that it is of."""
    if not found.starts:
        return [], []
    done = latest(planning.history(conn, pipeline_no, found).finished)
    going = _unfinished(conn, pipeline_no)
    states: list[str] = []
    runs: list[int] = []
    for start, end, cover in zip(found.starts, found.ends, covers(found.starts, found.ends, done), strict=True):
        state, id = going.get(start) or _of_finished(cover, between(done, start, end))
        states.append(state)
        runs.append(id)
    return states, runs


def _of_finished(cover: Cover, runs: Sequence[Stretch]) -> tuple[str, int]:
    id = max((each.run.id for each in runs), default=NO_RUN)
    if cover.succeeded:
        return RunState.SUCCEEDED, id
    if cover.finished:
        return RunState.FAILED, id
    return (PARTLY, id) if cover.some else (NEVER, NO_RUN)


def _unfinished(conn: Connection, pipeline_no: int) -> dict[datetime, tuple[str, int]]:
    """By the interval's start: the state and id of its unfinished run."""
    found = select(run.c.interval_start, run.c.state, run.c.id).where(
        run.c.pipeline_no == pipeline_no, in_state(run, *UNFINISHED)
    )
    return {start: (state, id) for start, state, id in conn.execute(found)}


def _about(conn: Connection, ids: Collection[int]) -> dict[int, _About]:
    columns = (run.c[name] for name in _About._fields)
    found = select(run.c.id, *columns).where(run.c.id == func.any(sorted({*ids} - {NO_RUN})))
    return {id: _About(*facts) for id, *facts in conn.execute(found)}


def _places(values: Sequence[str | None]) -> tuple[list[str], list[int]]:
    """The distinct values, and of each its place among them; -1 for none."""
    distinct = list(dict.fromkeys(value for value in values if value is not None))
    place = {value: n for n, value in enumerate(distinct)}
    return distinct, [-1 if value is None else place[value] for value in values]
