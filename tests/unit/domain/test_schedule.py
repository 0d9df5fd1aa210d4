"""A schedule's data intervals in a time zone: presets, cron, both DST changes, and the limits of
the calendar.
"""

from datetime import UTC, date, datetime, timedelta, timezone
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from retrofill.domain.schedule import (
    PRESETS,
    BadSchedule,
    TooManyIntervals,
    boundaries,
    check_schedule,
    cron_of,
    range_bound,
    ticks,
    ticks_at_least,
)

NEW_YORK, BERLIN, SAO_PAULO = "America/New_York", "Europe/Berlin", "America/Sao_Paulo"


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


def bounds(schedule, zone, first, last, limit=10_000):
    return boundaries(schedule, zone, range_bound(first, zone, end=False), range_bound(last, zone, end=True), limit)


def local(schedule, zone, first, last):
    return [f"{moment.astimezone(ZoneInfo(zone)):%m-%dT%H:%M%z}" for moment in bounds(schedule, zone, first, last)]


def hours(found):
    return [(b - a) / timedelta(hours=1) for a, b in pairwise(found)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("@hourly", [utc(2024, 2, 28, 12), utc(2024, 2, 28, 13)]),
        ("@daily", [utc(2024, 2, 29), utc(2024, 3, 1)]),
        ("@weekly", [utc(2024, 3, 3), utc(2024, 3, 10)]),
        ("@monthly", [utc(2024, 3, 1), utc(2024, 4, 1)]),
        ("@quarterly", [utc(2024, 4, 1), utc(2024, 7, 1)]),
        ("@yearly", [utc(2025, 1, 1), utc(2026, 1, 1)]),
        ("*/20 * * * *", [utc(2024, 2, 28, 11, 40), utc(2024, 2, 28, 12)]),
        ("0 6 * * MON-FRI", [utc(2024, 2, 29, 6), utc(2024, 3, 1, 6)]),
    ],
)
def test_the_first_two_ticks_from_a_moment(schedule, expected):
    assert list(islice(ticks(schedule, "UTC", utc(2024, 2, 28, 11, 21)), 2)) == expected


def test_every_preset_is_tried_and_is_a_schedule():
    assert set(PRESETS) == {"@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly"}
    for preset, cron in PRESETS.items():
        check_schedule(preset, "UTC")
        assert cron_of(preset) == cron


@pytest.mark.parametrize(
    "schedule",
    ["", "@nightly", "@DAILY", "* * * *", "* * * * * *", "60 * * * *", "x * * * *", "0 0 * * 9", "0 0 0 * *"],
)
def test_what_is_no_schedule_is_refused(schedule):
    with pytest.raises(BadSchedule):
        check_schedule(schedule, "UTC")


@pytest.mark.parametrize("schedule", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *"])
def test_a_day_that_never_comes_is_refused(schedule):
    with pytest.raises(BadSchedule):
        check_schedule(schedule, "UTC")


def test_a_schedule_that_runs_out_of_days_is_refused(monkeypatch):
    monkeypatch.setattr("retrofill.domain.schedule.CronSim", lambda *_: iter(()))
    with pytest.raises(BadSchedule, match="never fires"):
        check_schedule("0 0 29 2 *", "UTC")


def test_the_leap_day_comes_every_four_years():
    check_schedule("0 0 29 2 *", "UTC")
    found = bounds("0 0 29 2 *", "UTC", date(2021, 1, 1), date(2028, 12, 31))
    assert found == [utc(2024, 2, 29), utc(2028, 2, 29), utc(2032, 2, 29)]
    assert len(bounds("@daily", "UTC", date(2024, 2, 1), date(2024, 2, 29))) == 30
    assert len(bounds("@daily", "UTC", date(2023, 2, 1), date(2023, 2, 28))) == 29


@pytest.mark.parametrize(
    ("zone", "day", "long"),
    [
        (NEW_YORK, date(2024, 3, 10), 23),
        (NEW_YORK, date(2024, 11, 3), 25),
        (BERLIN, date(2024, 3, 31), 23),
        (BERLIN, date(2024, 10, 27), 25),
        (SAO_PAULO, date(2018, 11, 4), 23),
        (SAO_PAULO, date(2018, 2, 17), 25),
    ],
)
class TestDaysOfOtherLengths:
    def test_a_day_is_as_long_as_it_is_there(self, zone, day, long):
        around = bounds("@daily", zone, day - timedelta(days=1), day + timedelta(days=1))
        assert hours(around) == [24, long, 24]

    def test_it_has_as_many_hours_and_each_is_one(self, zone, day, long):
        found = bounds("@hourly", zone, day, day)
        assert hours(found) == [1] * long

    def test_half_hours_follow_real_time(self, zone, day, long):
        assert hours(bounds("*/30 * * * *", zone, day, day)) == [0.5] * (2 * long)

    def test_a_bare_date_is_the_whole_day_and_no_more(self, zone, day, long):
        first, last = range_bound(day, zone, end=False), range_bound(day, zone, end=True)
        assert last - first + timedelta(microseconds=1) == timedelta(hours=long)
        following = range_bound(day + timedelta(days=1), zone, end=False)
        assert last + timedelta(microseconds=1) == following


def test_a_tick_in_the_hour_that_is_skipped_fires_right_after_it():
    assert local("30 2 * * *", NEW_YORK, date(2024, 3, 9), date(2024, 3, 10)) == [
        "03-09T02:30-0500",
        "03-10T03:00-0400",
        "03-11T02:30-0400",
    ]


def test_a_tick_in_the_hour_that_comes_twice_fires_once():
    assert local("30 1 * * *", NEW_YORK, date(2024, 11, 2), date(2024, 11, 3)) == [
        "11-02T01:30-0400",
        "11-03T01:30-0400",
        "11-04T01:30-0500",
    ]


def test_an_hourly_tick_fires_in_both_hours_of_the_same_name():
    assert local("@hourly", BERLIN, date(2024, 10, 27), date(2024, 10, 27))[1:5] == [
        "10-27T01:00+0200",
        "10-27T02:00+0200",
        "10-27T02:00+0100",
        "10-27T03:00+0100",
    ]


def test_a_day_whose_midnight_does_not_exist_begins_at_its_first_moment():
    day = date(2018, 11, 4)
    assert range_bound(day, SAO_PAULO, end=False) == utc(2018, 11, 4, 3)
    assert local("@daily", SAO_PAULO, day, day) == ["11-04T01:00-0200", "11-05T00:00-0200"]
    assert local("@daily", SAO_PAULO, date(2018, 11, 3), date(2018, 11, 3)) == ["11-03T00:00-0300", "11-04T01:00-0200"]


def test_the_range_is_closed_at_both_ends():
    whole = [utc(2024, 1, 1), utc(2024, 1, 2), utc(2024, 1, 3)]
    tick = timedelta(microseconds=1)
    assert boundaries("@daily", "UTC", whole[0], whole[1], 9) == whole
    assert boundaries("@daily", "UTC", whole[0] + tick, whole[1], 9) == whole[1:]
    assert boundaries("@daily", "UTC", whole[0], whole[1] - tick, 9) == whole[:2]


@pytest.mark.parametrize("gap", [timedelta(0), timedelta(hours=10)])
def test_a_range_between_two_ticks_is_empty(gap):
    first = utc(2024, 1, 1, 6)
    assert boundaries("@daily", "UTC", first, first + gap, 9) == []


def test_an_interval_that_begins_in_the_range_may_end_after_it():
    assert bounds("@monthly", "UTC", date(2024, 1, 1), date(2024, 1, 1)) == [utc(2024, 1, 1), utc(2024, 2, 1)]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_the_limit_is_of_intervals(limit):
    first = utc(2024, 1, 1)
    last = first + timedelta(days=limit - 1)
    assert len(boundaries("@daily", "UTC", first, last, limit)) == limit + 1
    with pytest.raises(TooManyIntervals) as raised:
        boundaries("@daily", "UTC", first, last + timedelta(days=1), limit)
    assert raised.value.limit == limit


def test_a_range_without_end_stops_at_the_limit():
    with pytest.raises(TooManyIntervals):
        boundaries("* * * * *", "UTC", utc(2024, 1, 1), datetime.max.replace(tzinfo=UTC), 50)


def test_the_year_9999_has_no_interval_that_the_calendar_does_not_end():
    assert bounds("@daily", "UTC", date(9999, 12, 30), date(9999, 12, 30)) == [utc(9999, 12, 30), utc(9999, 12, 31)]
    assert boundaries("@daily", "UTC", utc(9999, 12, 30), utc(9999, 12, 31), 9) == [
        utc(9999, 12, 30),
        utc(9999, 12, 31),
    ]
    assert boundaries("@daily", "UTC", utc(9999, 12, 31), utc(9999, 12, 31), 9) == []
    assert boundaries("@yearly", "UTC", utc(9999, 1, 1), utc(9999, 1, 1), 9) == []


@pytest.mark.parametrize(
    ("value", "zone", "end"),
    [
        (date(9999, 12, 31), "UTC", True),
        (date(9999, 12, 31), NEW_YORK, True),
        (date(1, 1, 1), "Asia/Tokyo", False),
        (date(1, 1, 1), "UTC", False),
        (date(1, 1, 1), NEW_YORK, False),
        (utc(1, 1, 1), "UTC", False),
        (utc(1, 1, 1, 3), NEW_YORK, False),
        (datetime.max.replace(tzinfo=UTC), "Asia/Tokyo", False),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), "UTC", False),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), "UTC", True),
    ],
)
def test_a_bound_outside_the_calendar_is_refused_in_words(value, zone, end):
    with pytest.raises(ValueError, match="outside the calendar"):
        range_bound(value, zone, end=end)


@settings(deadline=None)
@given(
    value=st.datetimes(timezones=st.just(UTC)) | st.dates(),
    zone=st.sampled_from(["UTC", NEW_YORK, "Asia/Tokyo", "Pacific/Kiritimati"]),
)
def test_a_bound_that_is_accepted_is_one_to_count_ticks_from(value, zone):
    try:
        first = range_bound(value, zone, end=False)
    except ValueError:
        return
    tick = next(ticks("@daily", zone, first), None)
    assert tick is None or tick >= first


def test_a_datetime_bound_needs_an_offset():
    with pytest.raises(ValueError, match="no UTC offset"):
        range_bound(datetime(2024, 1, 1), "UTC", end=False)


def test_a_datetime_bound_is_that_moment_at_either_end():
    moment = datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert range_bound(moment, NEW_YORK, end=False) == range_bound(moment, NEW_YORK, end=True) == utc(2024, 1, 1)


# Around DST changes: (zone, a moment some hours before the change)
CHANGES = [
    (NEW_YORK, utc(2024, 3, 9, 20)),
    (NEW_YORK, utc(2024, 11, 2, 20)),
    (BERLIN, utc(2024, 3, 30, 16)),
    (BERLIN, utc(2024, 10, 26, 16)),
    (SAO_PAULO, utc(2018, 11, 3, 18)),
    (SAO_PAULO, utc(2018, 2, 17, 14)),
    ("America/Havana", utc(2024, 11, 2, 20)),
    ("Australia/Lord_Howe", utc(2024, 4, 6, 6)),
    ("Australia/Lord_Howe", utc(2024, 10, 5, 6)),
]
FIELD = st.sampled_from(["*", "0", "30", "*/15", "15,45"])
HOUR = st.sampled_from(["*", "0", "1", "2", "*/2", "1-3", "0,2"])


@settings(deadline=None)
@given(
    change=st.sampled_from(CHANGES),
    minute=FIELD,
    hour=HOUR,
    minutes=st.integers(0, 20 * 60),
    seconds=st.integers(0, 59),
    more=st.integers(0, 300),
)
def test_intervals_are_the_same_wherever_the_range_begins(change, minute, hour, minutes, seconds, more):
    zone, before = change
    schedule = f"{minute} {hour} * * *"
    first = before + timedelta(minutes=minutes, seconds=seconds)
    last = first + timedelta(minutes=more)
    until = last + timedelta(days=3)
    everything = list(takewhile(lambda tick: tick < until, ticks(schedule, zone, before)))
    assert all(a < b for a, b in pairwise(everything))
    inside = [tick for tick in everything if first <= tick <= last]
    after = next(tick for tick in everything if tick > last)
    assert boundaries(schedule, zone, first, last, 10_000) == ([*inside, after] if inside else [])


@settings(deadline=None)
@given(
    minute=st.sampled_from(["0", "*/7", "5,17", "30"]),
    hour=st.sampled_from(["*", "3", "*/5", "8-10"]),
    start=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
    length=st.integers(0, 2000),
)
def test_boundaries_are_exactly_the_minutes_that_match(minute, hour, start, length):
    """Compared with the simplest implementation: check every minute of the range."""
    last = start + timedelta(minutes=length)
    minutes = {"0": {0}, "*/7": set(range(0, 60, 7)), "5,17": {5, 17}, "30": {30}}[minute]
    of_day = {"*": set(range(24)), "3": {3}, "*/5": set(range(0, 24, 5)), "8-10": {8, 9, 10}}[hour]
    whole = start.replace(second=0, microsecond=0)
    matching = [
        moment
        for moment in (whole + timedelta(minutes=n) for n in range(length + 3 * 24 * 60))
        if moment.minute in minutes and moment.hour in of_day and moment >= start
    ]
    inside = [moment for moment in matching if moment <= last]
    expected = [*inside, matching[len(inside)]] if inside else []
    assert boundaries(f"{minute} {hour} * * *", "UTC", start, last, 10_000) == expected


@settings(deadline=None, max_examples=200)
@given(
    zone=st.sampled_from(sorted(available_timezones())) | st.sampled_from([zone for zone, _ in CHANGES]),
    minute=FIELD,
    hour=HOUR,
    every=st.sampled_from(["* *"] * 6 + ["1,15 *", "L 3,10-12", "*/7 2", "* 3,10,11"]),
    weekday=st.sampled_from(["*", "0", "0L", "MON#1", "1-5"]),
    start=st.datetimes(datetime(1850, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))
    | st.datetimes(datetime(9998, 11, 1), datetime(9999, 12, 1), timezones=st.just(UTC))
    | st.datetimes(datetime(1, 1, 3), datetime(1, 1, 20), timezones=st.just(UTC))
    | st.sampled_from([moment for _, moment in CHANGES]),
)
def test_the_ticks_are_those_of_the_library(zone, minute, hour, every, weekday, start):
    """Generating whole days at once and single ticks gives the same result."""
    schedule = f"{minute} {hour} {every} {weekday}"
    assert list(islice(ticks(schedule, zone, start), 300)) == list(islice(plain_ticks(schedule, zone, start), 300))


def plain_ticks(schedule, zone, start):
    last = None
    try:
        for tick in CronSim(schedule, (start - timedelta(minutes=1)).astimezone(ZoneInfo(zone))):
            moment = tick.astimezone(UTC)
            if moment >= start and moment != last:
                yield moment
                last = moment
    except OverflowError:
        return


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "Africa/Casablanca"])
@pytest.mark.parametrize("schedule", ["* * * * *", "@hourly", "@daily", "*/7 3 * * 1", "* * 29 2 *", "0,30 * 1,15 * *"])
def test_far_too_many_are_refused_without_looking_at_one(schedule, zone, monkeypatch):
    """Enumerating even the allowed number takes many seconds and would block all other planning."""
    monkeypatch.setattr("retrofill.domain.schedule.ticks", lambda *_: pytest.fail("the ticks were enumerated"))
    with pytest.raises(TooManyIntervals):
        boundaries(schedule, zone, utc(1, 2, 1), utc(9999, 12, 30), 500_000)


@settings(deadline=None, max_examples=200)
@given(
    zone=st.sampled_from(["UTC", NEW_YORK, BERLIN, "Africa/Casablanca", "Pacific/Apia", "Australia/Lord_Howe"]),
    minute=FIELD,
    hour=HOUR,
    day=st.sampled_from(["*", "1,15", "29", "L", "*/7"]),
    month=st.sampled_from(["*", "3", "2,12", "10-12"]),
    weekday=st.sampled_from(["*", "0", "0L", "MON#1", "1-5"]),
    first=st.datetimes(datetime(2009, 1, 1), datetime(2013, 1, 1), timezones=st.just(UTC)),
    length=st.integers(0, 900),
)
def test_the_bound_is_never_above_what_there_is(zone, minute, hour, day, month, weekday, first, length):
    schedule = f"{minute} {hour} {day} {month} {weekday}"
    last = first + timedelta(days=length)
    most = 2_000
    found = sum(1 for _ in islice(takewhile(lambda tick: tick <= last, ticks(schedule, zone, first)), most))
    assert found == most or ticks_at_least(schedule, zone, first, last, enough=found + 1) <= found


def test_a_moment_that_the_zone_has_no_time_for_is_outside_the_calendar():
    with pytest.raises(ValueError, match="outside the calendar"):
        range_bound(utc(9999, 12, 31, 15), "Asia/Tokyo", end=False)
