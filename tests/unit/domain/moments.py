"""The data intervals of a schedule, as moments in UTC or as local times."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from retrofill_core.domain import schedule as schedules
from retrofill_core.domain.schedule import Ticks, range_bound

NEW_YORK, BERLIN, SAO_PAULO = "America/New_York", "Europe/Berlin", "America/Sao_Paulo"


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


def ticks(schedule, zone, start):
    return Ticks(schedule, zone).since(start)


def boundaries(schedule, zone, first, last, limit):
    return schedules.boundaries(Ticks(schedule, zone), first, last, limit)


def bounds(schedule, zone, first, last, limit=10_000):
    return boundaries(schedule, zone, range_bound(first, zone, end=False), range_bound(last, zone, end=True), limit)


def local(schedule, zone, first, last):
    return [f"{moment.astimezone(ZoneInfo(zone)):%m-%dT%H:%M%z}" for moment in bounds(schedule, zone, first, last)]


def hours(found):
    return [(b - a) / timedelta(hours=1) for a, b in pairwise(found)]
