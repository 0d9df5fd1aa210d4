"""Schedules as cron expressions, whose ticks bound data intervals, and ranges of logical dates with the intervals in them.

Across clock changes, as in Debian's cron: a tick at a skipped time fires right after the gap and one at a
repeated time fires once, but with a wildcard minute or hour ticks follow real time.
"""

from __future__ import annotations

import calendar
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import BeforeValidator

from retrofill.wording import span

PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 1,4,7,10 *",
    "@yearly": "0 0 1 1 *",
}


class BadSchedule(ValueError):
    """A schedule that is neither a preset nor a cron expression, or never fires."""


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


class Cron:
    """The fields of an expression, read once."""

    def __init__(self, expression: str) -> None:
        self._sim = CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
        self._days: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.minutes: int = len(self._sim.minutes)
        self.months: tuple[int, ...] = tuple(sorted(self._sim.months))
        # Of each matching day, rising, since midnight.
        self.times: tuple[timedelta, ...] = tuple(
            timedelta(hours=hour, minutes=minute)
            for hour in sorted(self._sim.hours)
            for minute in sorted(self._sim.minutes)
        )
        self.follows_real_time: bool = any(field.startswith("*") for field in expression.split()[:2])

    def days(self, year: int, month: int) -> tuple[int, ...]:
        """The days of a month that match, rising. The weekday of the first and their number determine them."""
        weekday, length = calendar.monthrange(year, month)
        kind = (month, weekday, length)
        if kind not in self._days:
            days = range(1, length + 1) if month in self.months else ()
            self._days[kind] = tuple(day for day in days if self._sim.match_day(date(year, month, day)))
        return self._days[kind]


@lru_cache(maxsize=64)
def parsed(schedule: str) -> Cron:
    """A schedule's fields. Cached, since parsing takes longer than finding the ticks of a day."""
    return Cron(cron_of(schedule))


# Python's calendar without its first and last year: all days in it have neighbors, in any time zone.
FIRST_YEAR, LAST_YEAR = 2, 9998

ONE_DAY = timedelta(days=1)
A_SECOND = timedelta(seconds=1)
A_MINUTE = timedelta(minutes=1)
NO_TIME = timedelta()
SECONDS_OF_DAY = range(1, 24 * 60 * 60 + 1)


class TickSpan(NamedTuple):
    """Some ticks, rising: ``base`` plus each of ``times[first:end]``. None is later than the end of ``day`` there."""

    day: date
    base: datetime
    times: Sequence[timedelta]
    first: int
    end: int


class Ticks:
    """Looks up ticks. Those of rising moments are found in one pass, which looks at each stretch once at most."""

    def __init__(self, schedule: str, timezone: str) -> None:
        self.cron = parsed(schedule)
        self.zone = ZoneInfo(timezone)
        self._stretches: Iterator[TickSpan] = iter(())
        self._stretch: TickSpan | None = None
        # The pass may go on to ticks from here on.
        self._ahead: datetime | None = None

    def since(self, moment: datetime) -> Iterator[datetime]:
        """Ticks at or after a moment, in UTC, rising, until the end of the calendar. Valid until the next look-up."""
        self._seek(moment)
        while self._stretch is not None:
            _, base, times, first, end = self._stretch
            for n in range(bisect_left(times, moment - base, first, end), end):
                yield base + times[n]
            self._pass(self._stretch)

    def _seek(self, moment: datetime) -> None:
        """Find the first stretch with a tick at or after a moment."""
        if self._ahead is None or moment < self._ahead:
            self._begin(moment)
        while self._stretch is not None and _last(self._stretch) < moment:
            if self._stretch.day < moment.astimezone(self.zone).date() - 2 * ONE_DAY:
                self._begin(moment)
            else:
                self._pass(self._stretch)

    def _begin(self, moment: datetime) -> None:
        # A clock change may move ticks of the day before past midnight.
        self._stretches = _stretches(self.cron, self.zone, moment.astimezone(self.zone).date() - ONE_DAY)
        self._stretch, self._ahead = next(self._stretches, None), moment

    def _pass(self, stretch: TickSpan) -> None:
        self._stretch, self._ahead = next(self._stretches, None), _last(stretch) + datetime.resolution


def _last(stretch: TickSpan) -> datetime:
    return stretch.base + stretch.times[stretch.end - 1]


def _stretches(cron: Cron, zone: ZoneInfo, first: date) -> Iterator[TickSpan]:
    """All ticks of the local dates from ``first`` on, rising.

    Matching days without a clock change nearby have the same times. The others are taken together if they
    are adjacent, because ticks of two dates alternate where clocks go back past midnight.
    """
    near_change: list[date] = []
    for day in _matching_days(cron, first):
        offset = _steady_offset(zone, day)
        if near_change and (offset is not None or day - near_change[-1] > ONE_DAY):
            yield from _near_change(cron, zone, near_change[0], near_change[-1])
            near_change.clear()
        if offset is None:
            near_change.append(day)
        else:
            yield TickSpan(day, _midnight(day) - offset, cron.times, 0, len(cron.times))
    if near_change:
        yield from _near_change(cron, zone, near_change[0], near_change[-1])


def _matching_days(cron: Cron, first: date) -> Iterator[date]:
    for year in range(first.year, LAST_YEAR + 1):
        for month in cron.months:
            if (year, month) < (first.year, first.month):
                continue
            for number in cron.days(year, month):
                day = date(year, month, number)
                if day >= first:
                    yield day


def _near_change(cron: Cron, zone: ZoneInfo, first: date, last: date) -> Iterator[TickSpan]:
    """The ticks of adjacent days that match: what a clock shows between its changes."""
    around = [_offset(zone, first + n * ONE_DAY) for n in range(-1, (last - first).days + 3)]
    end_of_last = _midnight(last + ONE_DAY)
    seen = _midnight(first)  # local: the times before it were shown, or skipped
    for begin, end, offset in _between_changes(zone, _midnight(first) - max(around), end_of_last - min(around)):
        shown, until = begin + offset, min(end + offset, end_of_last)
        if cron.follows_real_time:
            yield from _shown(cron, max(shown, _midnight(first)), until, offset, last)
            continue
        if shown > seen:
            skipped = any(True for _ in _shown(cron, seen, min(shown, end_of_last), offset, last))
            seen = _whole_minute(shown)
            if skipped:
                yield TickSpan(last, seen - offset, (NO_TIME,), 0, 1)
                seen += A_MINUTE
        yield from _shown(cron, seen, until, offset, last)
        seen = max(seen, end + offset)


def _shown(cron: Cron, first: datetime, end: datetime, offset: timedelta, last: date) -> Iterator[TickSpan]:
    """The ticks whose local times are in ``[first, end)``, by days of which all match."""
    midnight = _midnight(first.date())
    while midnight < end:
        begin, beyond = (bisect_left(cron.times, moment - midnight) for moment in (first, end))
        if begin < beyond:
            yield TickSpan(last, midnight - offset, cron.times, begin, beyond)
        midnight += ONE_DAY


def _between_changes(zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime, timedelta]]:
    """Begin, end and UTC offset of each stretch between clock changes."""
    day = begin
    while day < end:
        change = _change_within_a_day(zone, day)
        if change is not None and change < end:
            yield begin, change, _offset_at(zone, begin)
            begin = change
        day += ONE_DAY
    yield begin, end, _offset_at(zone, begin)


def _change_within_a_day(zone: ZoneInfo, since: datetime) -> datetime | None:
    """When the UTC offset changes in the day that follows, if it does. No zone changes its clocks twice within a day."""
    before = _offset_at(zone, since)
    if before == _offset_at(zone, since + ONE_DAY):
        return None

    def changed(seconds: int) -> bool:
        return _offset_at(zone, since + seconds * A_SECOND) != before

    return since + SECONDS_OF_DAY[bisect_left(SECONDS_OF_DAY, True, key=changed)] * A_SECOND


def _offset_at(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).replace(tzinfo=UTC) - moment


def _steady_offset(zone: ZoneInfo, day: date) -> timedelta | None:
    """The UTC offset around ``day``; ``None`` if it changes."""
    first = _offset(zone, day - ONE_DAY)
    steady = first == _offset(zone, day) == _offset(zone, day + ONE_DAY) == _offset(zone, day + 2 * ONE_DAY)
    return first if steady else None


@lru_cache(maxsize=4096)
def _offset(zone: ZoneInfo, day: date) -> timedelta:
    """The UTC offset at midnight. Cached for the days around it, which need it too."""
    midnight = _midnight(day)
    return midnight - midnight.replace(tzinfo=zone).astimezone(UTC)


def _midnight(day: date) -> datetime:
    """The local time, as if it were in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _whole_minute(local: datetime) -> datetime:
    """The first whole minute that is not before."""
    begun = local.replace(second=0, microsecond=0)
    return begun if begun == local else begun + A_MINUTE


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


def written_range(start: datetime, end: datetime, timezone: str) -> str:
    """The range ``[start, end)`` for people, with its time zone: ``2024-01-01 – 2024-01-31 (Europe/Berlin)``."""
    return f"{span(start, end, ZoneInfo(timezone))} ({timezone})"


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
