"""Requests for intervals of an earlier schedule or time zone: refused, with the request to make instead."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from retrofill_core.domain.backfill import ReprocessBehavior
from retrofill_core.domain.cron import Ticks
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Intervals, Reason, Rejection

# How far back the last tick may be: of a schedule with a day, a week, a month, a year between two, or
# four, as for February 29, and eight around 1900.
BACK = tuple(timedelta(days=days) for days in (1, 8, 32, 367, 4 * 367, 8 * 367))


def schedule_changed(
    pipeline: PipelineDefinition,
    expected: Sequence[tuple[datetime, datetime]],
    found: Intervals | Rejection,
    reprocess: ReprocessBehavior,
) -> Rejection | None:
    """The rejection of a request for ``expected`` intervals, of which the schedule makes what was ``found``."""
    if not expected or (isinstance(found, Rejection) and found.reason != Reason.EMPTY_RANGE):
        return None
    now = set() if isinstance(found, Rejection) else set(zip(found.starts, found.ends, strict=True))
    others = [each for each in sorted(expected) if each not in now]
    if not others:
        return None
    first, last = min(start for start, _ in expected), max(end for _, end in expected)
    start, end = others[0]
    return Rejection(
        Reason.SCHEDULE_CHANGED,
        f"{len(others):,} of {len(expected):,} data intervals, like {start.isoformat()} to {end.isoformat()}, are none of "
        f"{pipeline.schedule} ({pipeline.timezone}), the schedule that {pipeline.name} has by now: request the intervals "
        f"that it has there, 'retrofill backfill create {pipeline.name} {_range(pipeline, first, last)} "
        f"--reprocess {reprocess}', with the options of the first request",
    )


def _range(pipeline: PipelineDefinition, first: datetime, last: datetime) -> str:
    """The options for all intervals that overlap ``[first, last)``."""
    zone = ZoneInfo(pipeline.timezone)
    begin = (_last_tick(pipeline, first) or first).astimezone(zone)
    until = (_last_tick(pipeline, last - datetime.resolution) or first).astimezone(zone)
    # The whole day, where the days of the range are whole.
    whole = last.astimezone(zone).timetz().replace(tzinfo=None) == time.min
    to = until.date().isoformat() if whole else until.isoformat()
    start = begin.date().isoformat() if begin.timetz().replace(tzinfo=None) == time.min else begin.isoformat()
    return f"--from {start} --to {to}"


def _last_tick(pipeline: PipelineDefinition, moment: datetime) -> datetime | None:
    """The last tick at or before a moment; ``None`` if there is none."""
    for back in BACK:
        found = None
        for tick in Ticks(pipeline.schedule, pipeline.timezone).since(moment - back):
            if tick > moment:
                break
            found = tick
        if found is not None:
            return found
    return None
