"""Schedules in a time zone, and their data intervals."""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import takewhile
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

ONE_DAY = timedelta(days=1)
NEAR = timedelta(days=3)


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

    Across DST changes, as in Debian's cron: a tick in a skipped hour fires right after it, one in a
    repeated hour fires once, and wildcard hours follow real time.
    """
    last = None
    try:
        cron, zone = cron_of(schedule), ZoneInfo(timezone)
        # Only with ticks on every day; otherwise most days have none.
        found = _by_days if cron.split()[2:4] == ["*", "*"] else _one_by_one
        for moment in found(cron, zone, start):
            if moment >= start and moment != last:
                yield moment
                last = moment
    except OverflowError:
        return


def _by_days(cron: str, zone: ZoneInfo, start: datetime) -> Iterator[datetime]:
    """All ticks from the day of ``start`` on, in UTC.

    Matching days without a clock change nearby have the same hours and minutes. Only for the other
    days the library computes each tick, which is much slower with many ticks a day.
    """
    sim, times = _parsed(cron)
    day = first = start.astimezone(zone).date()
    while date.min + NEAR < day < date.max - NEAR:
        offset = _steady_offset(zone, day)
        if offset is None:
            end = _midnight(zone, day + ONE_DAY)
            yield from takewhile(lambda tick: tick < end, _one_by_one(cron, zone, _midnight(zone, day)))  # noqa: B023
        elif sim.match_day(day):
            midnight = datetime(day.year, day.month, day.day, tzinfo=UTC) - offset
            for since in times:
                yield midnight + since
        day += ONE_DAY
    # At the edges of the calendar a day has no neighbor.
    yield from _one_by_one(cron, zone, start if day == first else _midnight(zone, day))


@lru_cache(maxsize=64)
def _parsed(cron: str) -> tuple[CronSim, tuple[timedelta, ...]]:
    """The fields of an expression, and its times of a day.

    Cached, since a request may name thousands of dates, and parsing takes longer than finding the
    ticks of one. Not to be iterated: its moment means nothing.
    """
    sim = CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
    times = (timedelta(hours=hour, minutes=minute) for hour in sorted(sim.hours) for minute in sorted(sim.minutes))
    return sim, tuple(times)


def _one_by_one(cron: str, zone: ZoneInfo, start: datetime) -> Iterator[datetime]:
    """Ticks from ``start`` on, in UTC, computed by the library."""
    # It starts strictly after its argument, which it truncates to the minute.
    before = start.astimezone(UTC) - timedelta(minutes=1)
    return (tick.astimezone(UTC) for tick in CronSim(cron, before.astimezone(zone)))


def _midnight(zone: ZoneInfo, day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def _steady_offset(zone: ZoneInfo, day: date) -> timedelta | None:
    """The UTC offset around ``day``; ``None`` if it changes or is not in whole minutes."""
    first = _offset(zone, day - ONE_DAY)
    steady = first == _offset(zone, day) == _offset(zone, day + ONE_DAY) == _offset(zone, day + 2 * ONE_DAY)
    return first if steady and first is not None and not first.seconds % 60 else None


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
    try:
        zone = ZoneInfo(timezone)
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise ValueError(f"{value.isoformat()} has no UTC offset: write it like 2024-01-31T00:00:00+00:00")
            moment = value.astimezone(UTC)
        elif end:
            following = datetime.combine(value + timedelta(days=1), time.min, zone).astimezone(UTC)
            return following - timedelta(microseconds=1)
        else:
            moment = datetime.combine(value, time.min, zone).astimezone(UTC)
        # Ticks are computed from just before it, in the zone: both must be in the calendar there.
        moment.astimezone(zone)
        (moment - timedelta(minutes=1)).astimezone(zone)
        return moment
    except OverflowError as e:
        raise ValueError(f"{value.isoformat()} is outside the calendar") from e
