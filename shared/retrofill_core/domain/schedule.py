"""Schedules in a time zone, and their data intervals."""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 1,4,7,10 *",
    "@yearly": "0 0 1 1 *",
}

# Upper bounds of what clock changes skip: at most four changes a year (Morocco), each skipping an
# hour, which affects two by name; and a move across the date line, which skips a day.
CHANGES_A_YEAR = 4
SKIPPED_HOURS = 2
SKIPPED_DAYS = 2

# Python's calendar without its first and last year: all days in it have neighbors, in any time zone.
FIRST_YEAR, LAST_YEAR = 2, 9998

A_MINUTE = timedelta(minutes=1)
ONE_DAY = timedelta(days=1)
A_MONTH = timedelta(days=31)


class BadSchedule(ValueError):
    """A schedule that is neither a preset nor a cron expression, or never fires."""


class TooManyIntervals(Exception):
    """A range has more data intervals than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the range has more than {limit:,} data intervals")
        self.limit = limit


def cron_of(schedule: str) -> str:
    """The schedule as a five-field cron expression. Raises ``BadSchedule``."""
    if schedule in PRESETS:
        return PRESETS[schedule]
    if schedule.startswith("@") or len(schedule.split()) != 5:
        raise BadSchedule(
            f"schedule {schedule!r} is neither one of {', '.join(PRESETS)} nor a cron expression of five fields"
        )
    return schedule


def check_schedule(schedule: str, timezone: str) -> None:
    """Raises ``BadSchedule`` for a schedule that is invalid or never fires, as on February 30."""
    moment = datetime(2000, 1, 1, tzinfo=ZoneInfo(timezone))
    try:
        fires = next(CronSim(cron_of(schedule), moment), None)
    except CronSimError as e:
        raise BadSchedule(f"schedule {schedule!r} is not a cron expression: {e}") from e
    if fires is None:
        raise BadSchedule(f"schedule {schedule!r} never fires")


def ticks(schedule: str, timezone: str, start: datetime) -> Iterator[datetime]:
    """Ticks at or after ``start``, in UTC, rising, until the end of the calendar.

    Across clock changes, as in Debian's cron: a tick at a skipped time fires right after the gap and one
    at a repeated time fires once, but with a wildcard minute or hour ticks follow real time.
    """
    zone = ZoneInfo(timezone)
    # A clock change may move ticks of the day before past midnight.
    found = _by_days(cron_of(schedule), zone, start.astimezone(zone).date() - ONE_DAY)
    return (tick for tick in found if tick >= start)


def _by_days(cron: str, zone: ZoneInfo, first: date) -> Iterator[datetime]:
    """All ticks of the local dates from ``first`` on, in UTC, rising.

    Matching days without a clock change nearby have the same hours and minutes.
    """
    sim, times = _parsed(cron)
    follows_real_time = any(field.startswith("*") for field in cron.split()[:2])
    ticks_near_change = _real_ticks if follows_real_time else _named_ticks
    # Where clocks go back past midnight, ticks of two dates alternate.
    near_change: set[datetime] = set()
    previous = first
    for day in _matching_days(sim, first):
        offset = _steady_offset(zone, day)
        if offset is not None or day - previous > ONE_DAY:
            yield from sorted(near_change)
            near_change.clear()
        midnight = datetime(day.year, day.month, day.day)
        if offset is None:
            near_change.update(ticks_near_change(zone, midnight, times))
        else:
            start = midnight.replace(tzinfo=UTC) - offset
            for since in times:
                yield start + since
        previous = day
    yield from sorted(near_change)


@lru_cache(maxsize=64)
def _parsed(cron: str) -> tuple[CronSim, tuple[timedelta, ...]]:
    """The fields of an expression, and its times of a day.

    Cached, since a request may name thousands of dates, and parsing takes longer than finding the
    ticks of one. Not to be iterated: its moment means nothing.
    """
    sim = CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
    times = (timedelta(hours=hour, minutes=minute) for hour in sorted(sim.hours) for minute in sorted(sim.minutes))
    return sim, tuple(times)


def _matching_days(sim: CronSim, day: date) -> Iterator[date]:
    """The days from ``day`` on that match the last three fields of an expression."""
    while day.year <= LAST_YEAR:
        if day.month not in sim.months:
            day = (day.replace(day=1) + A_MONTH).replace(day=1)
            continue
        if sim.match_day(day):
            yield day
        day += ONE_DAY


def _real_ticks(zone: ZoneInfo, midnight: datetime, times: Iterable[timedelta]) -> Iterator[datetime]:
    """Every moment at which a clock of ``zone`` shows one of ``times`` that day, in UTC, in any order."""
    for since in times:
        for fold in (0, 1):
            moment = _moment(zone, midnight + since, fold)
            if moment is not None:
                yield moment


def _named_ticks(zone: ZoneInfo, midnight: datetime, times: Iterable[timedelta]) -> Iterator[datetime]:
    """One moment for each of ``times`` that day, in UTC. In a gap, it is the first minute after the gap."""
    local = midnight
    for since in times:
        local = max(midnight + since, local)
        while (moment := _moment(zone, local)) is None:
            local += A_MINUTE
        yield moment


def _moment(zone: ZoneInfo, local: datetime, fold: int = 0) -> datetime | None:
    """When a clock of ``zone`` shows ``local``, in UTC; ``None`` if it skips that time."""
    moment = local.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    return moment if moment.astimezone(zone).replace(tzinfo=None) == local else None


def _steady_offset(zone: ZoneInfo, day: date) -> timedelta | None:
    """The UTC offset around ``day``; ``None`` if it changes."""
    first = _offset(zone, day - ONE_DAY)
    steady = first == _offset(zone, day) == _offset(zone, day + ONE_DAY) == _offset(zone, day + 2 * ONE_DAY)
    return first if steady else None


@lru_cache(maxsize=4096)
def _offset(zone: ZoneInfo, day: date) -> timedelta | None:
    """The UTC offset at midnight. Cached for the days around it, which need it too."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).utcoffset()


def boundaries(schedule: str, timezone: str, first: datetime, last: datetime, limit: int) -> list[datetime]:
    """Ticks in ``[first, last]`` and the next one, in UTC; empty if the range has none.

    n data intervals have n + 1 boundaries.
    Raises ``TooManyIntervals`` beyond ``limit`` intervals, without enumerating far more.
    """
    # The last tick of the calendar does not begin an interval.
    if ticks_at_least(schedule, timezone, first, last, enough=limit + 2) >= limit + 2:
        raise TooManyIntervals(limit)
    found: list[datetime] = []
    for tick in ticks(schedule, timezone, first):
        if len(found) > limit:
            raise TooManyIntervals(limit)
        if tick > last:
            return [*found, tick] if found else []
        found.append(tick)
    # The calendar ended inside the last interval, which is dropped.
    return found if len(found) > 1 else []


def ticks_at_least(schedule: str, timezone: str, first: datetime, last: datetime, enough: int) -> int:
    """A lower bound of the ticks in ``[first, last]``, found much faster than by enumeration.

    It counts the matching days of whole months, and stops at ``enough``.
    """
    sim, times = _parsed(cron_of(schedule))
    a_day = len(times)
    if ((last - first).days + 2) * a_day < enough:
        return 0
    zone = ZoneInfo(timezone)
    begin, end = first.astimezone(zone), (last - timedelta(minutes=1)).astimezone(zone)
    a_change = min(a_day, SKIPPED_HOURS * len(sim.minutes))
    found = -SKIPPED_DAYS * a_day
    matching: dict[tuple[int, int, int], int] = {}
    for year in range(begin.year, end.year + 1):
        days = 0
        for month in sim.months:
            if (begin.year, begin.month) < (year, month) < (end.year, end.month):
                weekday, length = calendar.monthrange(year, month)
                # These determine which days of a month match.
                kind = (month, weekday, length)
                if kind not in matching:
                    matching[kind] = sum(sim.match_day(date(year, month, day)) for day in range(1, length + 1))
                days += matching[kind]
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
