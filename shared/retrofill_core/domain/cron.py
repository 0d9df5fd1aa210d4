"""Schedules as cron expressions: which days match, and at which times of these days."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta
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
