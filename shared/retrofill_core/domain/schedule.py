"""Ranges of logical dates, and the data intervals in them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator

from retrofill_core.domain.cron import FIRST_YEAR, LAST_YEAR, ONE_DAY, Ticks

# Upper bounds of what clock changes skip: at most four changes a year (Morocco), each skipping an
# hour, which affects two by name; and a move across the date line, which skips a day.
CHANGES_A_YEAR = 4
SKIPPED_HOURS = 2
SKIPPED_DAYS = 2


class TooManyIntervals(Exception):
    """A range has more data intervals than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the range has more than {limit:,} data intervals")
        self.limit = limit


def boundaries(ticks: Ticks, first: datetime, last: datetime, limit: int) -> list[datetime]:
    """Ticks in ``[first, last]`` and the next one, in UTC; empty if the range has none.

    n data intervals have n + 1 boundaries.
    Raises ``TooManyIntervals`` beyond ``limit`` intervals, without enumerating far more.
    """
    # The last tick of the calendar does not begin an interval.
    if ticks_at_least(ticks, first, last, enough=limit + 2) >= limit + 2:
        raise TooManyIntervals(limit)
    found: list[datetime] = []
    for tick in ticks.since(first):
        if len(found) > limit:
            raise TooManyIntervals(limit)
        if tick > last:
            return [*found, tick] if found else []
        found.append(tick)
    # The calendar ended inside the last interval, which is dropped.
    return found if len(found) > 1 else []


def ticks_at_least(ticks: Ticks, first: datetime, last: datetime, enough: int) -> int:
    """A lower bound of the ticks in ``[first, last]``, found much faster than by enumeration.

    It counts the matching days of whole months, and stops at ``enough``.
    """
    cron, zone = ticks.cron, ticks.zone
    a_day = len(cron.times)
    if ((last - first).days + 2) * a_day < enough:
        return 0
    begin, end = first.astimezone(zone), (last - timedelta(minutes=1)).astimezone(zone)
    a_change = min(a_day, SKIPPED_HOURS * cron.minutes)
    found = -SKIPPED_DAYS * a_day
    for year in range(begin.year, end.year + 1):
        days = sum(
            len(cron.days(year, month))
            for month in cron.months
            if (begin.year, begin.month) < (year, month) < (end.year, end.month)
        )
        found += days * a_day - min(CHANGES_A_YEAR, days) * a_change
        if found >= enough:
            return found
    return 0


def range_bound(value: date | datetime, timezone: str, *, end: bool) -> datetime:
    """A bound of a closed range of logical dates, in UTC.

    A bare date means that whole day in ``timezone``: its first moment, or with ``end`` its last
    microsecond. Raises ``ValueError`` for a datetime without an offset or outside the calendar.
    """
    zone = ZoneInfo(timezone)
    try:
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise ValueError(f"{value.isoformat()} has no UTC offset: write it like 2024-01-31T00:00:00+00:00")
            moment = value.astimezone(UTC)
        elif end:
            moment = datetime.combine(value + ONE_DAY, time.min, zone).astimezone(UTC) - datetime.resolution
        else:
            moment = datetime.combine(value, time.min, zone).astimezone(UTC)
        inside = FIRST_YEAR <= moment.astimezone(zone).year <= LAST_YEAR
    except OverflowError:
        inside = False
    if not inside:
        raise ValueError(
            f"{value.isoformat()} is outside the calendar, which has the years {FIRST_YEAR} to {LAST_YEAR}"
        )
    return moment


DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def parse_bound(value: Any) -> Any:
    """Parse a date, or a datetime with an offset. Raises ``ValueError``."""
    if not isinstance(value, str):
        if isinstance(value, date):
            return value
        raise ValueError("not a string: use a date like 2024-01-31 or a datetime with an offset")
    if DATE.fullmatch(value):
        return date.fromisoformat(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{value[:40]!r} is neither a date like 2024-01-31 nor a datetime with an offset") from None
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no UTC offset: write it like 2024-01-31T00:00:00+00:00, or as a bare date")
    return moment


Bound = Annotated[datetime | date, BeforeValidator(parse_bound)]
