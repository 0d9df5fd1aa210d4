"""Finding intervals takes a number of steps that is bounded by what was asked for and by what there is."""

import sys
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.domain.moments import NEW_YORK, ticks, utc

from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import find_intervals
from retrofill_core.domain.schedule import FIRST_YEAR, LAST_YEAR, Ticks

DAY = timedelta(days=1)
# Lines executed for a date that was asked for, which may be near a clock change of its own; for an interval
# found; and for a month of the calendar.
STEPS_OF_DATE = 1200
STEPS_OF_INTERVAL = 10
STEPS_OF_MONTH = 10

MINUTELY, NAMED_MINUTES = "* * * * *", "0-59 0-23 * * *"
SCHEDULES = [
    MINUTELY,
    NAMED_MINUTES,
    "@hourly",
    "30 2 * * *",
    "*/7 3 * * 1",
    "@monthly",
    "@yearly",
    "0 0 29 2 *",
    "* * 29 2 *",
    "0 0 */29 2 1",  # Monday, February 1: once in many years
]
ZONES = {
    "UTC": utc(2024, 3, 31),
    NEW_YORK: utc(2024, 3, 10),
    "Australia/Lord_Howe": utc(2024, 4, 6),  # half an hour
    "Antarctica/Troll": utc(2024, 3, 31),  # two hours
    "Pacific/Apia": utc(2011, 12, 30),  # a day that is skipped
    "Pacific/Kwajalein": utc(1969, 9, 30),  # nearly a day that comes twice
    "Africa/Casablanca": utc(2024, 3, 10),  # four changes a year
    "Africa/Monrovia": utc(1972, 1, 7),  # an offset with seconds
}


class Steps:
    """Counts the lines that run while intervals are found."""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _call(self, frame, *_):
        return self._line if "retrofill_core" in frame.f_code.co_filename else None

    def _line(self, frame, event, _):
        self.count += event == "line"
        return self._line


def pipeline(schedule, zone):
    code = {"module": "m", "attribute": "p"}
    return PipelineDefinition.model_validate(
        {"name": "flights", "schedule": schedule, "timezone": zone, "tasks": [{"name": "t"}], "code": code}
    )


def counted(schedule, zone, asked):
    """What is found, and in how many steps."""
    definition = pipeline(schedule, zone)
    with Steps() as steps:
        found = find_intervals(definition, asked, 500_000)
    return found, steps.count


def allowed(asked, intervals):
    """The tick after the last date may be 400 years away."""
    months = 12 * (asked[-1][0].year - asked[0][0].year + 400)
    return STEPS_OF_DATE * len(asked) + STEPS_OF_INTERVAL * intervals + STEPS_OF_MONTH * months


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_instants_around_a_clock_change(schedule, zone):
    """As in a retry, which names each of its intervals."""
    asked = [(tick, tick) for tick in islice(ticks(schedule, zone, ZONES[zone] - 2 * DAY), 100)]
    found, steps = counted(schedule, zone, asked)
    assert found.starts == [tick for tick, _ in asked]
    assert steps <= allowed(asked, len(asked))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("apart", [timedelta(minutes=1), 3 * DAY, timedelta(days=182, hours=15)], ids=str)
def test_dates_near_and_far(schedule, zone, apart):
    """Most are next to no tick, or each is near a clock change of its own."""
    asked = [(moment, moment) for moment in (ZONES[zone] + n * apart for n in range(40))]
    _, steps = counted(schedule, zone, asked)
    assert steps <= allowed(asked, 40)


@pytest.mark.parametrize("schedule", ["@yearly", "0 0 29 2 *", "0 0 */29 2 1"])
def test_the_whole_calendar(schedule):
    asked = [(date(FIRST_YEAR, 2, 1), date(LAST_YEAR, 1, 1))]
    found, steps = counted(schedule, NEW_YORK, asked)
    assert steps <= allowed(asked, 100 * len(found.starts))


@given(
    zone=st.sampled_from(sorted(ZONES)),
    schedule=st.sampled_from(SCHEDULES),
    hours=st.lists(st.integers(-72, 72), min_size=2, max_size=6),
    minutes=st.integers(0, 59),
)
@settings(deadline=None)
def test_a_look_up_finds_the_same_after_any_other(zone, schedule, hours, minutes):
    one = Ticks(schedule, zone)
    for hour in hours:
        moment = ZONES[zone] + timedelta(hours=hour, minutes=minutes)
        assert list(islice(one.since(moment), 3)) == list(islice(ticks(schedule, zone, moment), 3))


@given(
    zone=st.sampled_from(sorted(ZONES)),
    hours=st.sampled_from(["0", "1,2", "0-3", "0-23", "23"]),
    minute=st.sampled_from(["0", "30", "59", "0-59", "5,15,45"]),
    day=st.sampled_from(["*", "30", "10,31", "1-6"]),
    begin=st.integers(-60, 60),
)
@settings(deadline=None)
def test_named_times_fire_once_or_right_after_the_gap(zone, hours, minute, day, begin):
    """Compared with the simplest way: each minute of a day that matches, one after the other."""
    start = ZONES[zone] + timedelta(hours=begin)
    there = ZoneInfo(zone)
    sim = Ticks(f"{minute} {hours} {day} * *", zone).cron
    first = start.astimezone(there).date() - DAY
    expected = set()
    for local_day in (first + n * DAY for n in range(6)):
        if local_day.day not in sim.days(local_day.year, local_day.month):
            continue
        for since in sim.times:
            local = datetime(local_day.year, local_day.month, local_day.day) + since
            while (moment := local.replace(tzinfo=there).astimezone(UTC)).astimezone(there).replace(
                tzinfo=None
            ) != local:
                local += timedelta(minutes=1)
            expected.add(moment)
    until = start + 3 * DAY
    found = ticks(f"{minute} {hours} {day} * *", zone, start)
    assert list(takewhile(lambda tick: tick < until, found)) == sorted(m for m in expected if start <= m < until)
