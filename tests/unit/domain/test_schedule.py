"""A schedule's data intervals: presets, cron, the ends of a range, and the limits of the calendar."""

from datetime import UTC, date, datetime, timedelta, timezone
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.domain.moments import NEW_YORK, boundaries, bounds, ticks, utc

from retrofill_core.domain.schedule import (
    FIRST_YEAR,
    LAST_YEAR,
    PRESETS,
    BadSchedule,
    TooManyIntervals,
    check_schedule,
    cron_of,
    range_bound,
)


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
    [
        *("", "@nightly", "@DAILY", "* * * *", "* * * * * *", "60 * * * *", "x * * * *", "0 0 * * 9", "0 0 0 * *"),
        # These days never come.
        *("0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule):
    with pytest.raises(BadSchedule):
        check_schedule(schedule, "UTC")


def test_a_schedule_that_runs_out_of_days_is_refused(monkeypatch):
    monkeypatch.setattr("retrofill_core.domain.schedule.CronSim", lambda *_: iter(()))
    with pytest.raises(BadSchedule, match="never fires"):
        check_schedule("0 0 29 2 *", "UTC")


def test_the_leap_day_comes_every_four_years():
    check_schedule("0 0 29 2 *", "UTC")
    found = bounds("0 0 29 2 *", "UTC", date(2021, 1, 1), date(2028, 12, 31))
    assert found == [utc(2024, 2, 29), utc(2028, 2, 29), utc(2032, 2, 29)]
    assert len(bounds("@daily", "UTC", date(2024, 2, 1), date(2024, 2, 29))) == 30
    assert len(bounds("@daily", "UTC", date(2023, 2, 1), date(2023, 2, 28))) == 29


def test_the_range_is_closed_at_both_ends():
    whole = [utc(2024, 1, 1), utc(2024, 1, 2), utc(2024, 1, 3)]
    tick = timedelta(microseconds=1)
    assert boundaries("@daily", "UTC", whole[0], whole[1], 9) == whole
    assert boundaries("@daily", "UTC", whole[0] + tick, whole[1], 9) == whole[1:]
    assert boundaries("@daily", "UTC", whole[0], whole[1] - tick, 9) == whole[:2]


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


def test_the_last_year_has_no_interval_that_the_calendar_does_not_end():
    last = utc(LAST_YEAR, 12, 30), utc(LAST_YEAR, 12, 31)
    assert bounds("@daily", "UTC", date(LAST_YEAR, 12, 30), date(LAST_YEAR, 12, 30)) == [*last]
    assert boundaries("@daily", "UTC", *last, 9) == [*last]
    assert boundaries("@daily", "UTC", last[1], last[1], 9) == []
    assert boundaries("@yearly", "UTC", utc(LAST_YEAR, 1, 1), utc(LAST_YEAR, 1, 1), 9) == []


@pytest.mark.parametrize(
    ("value", "zone", "end"),
    [
        (date(9999, 12, 31), "UTC", True),
        (date(9999, 12, 31), NEW_YORK, True),
        (date(LAST_YEAR + 1, 1, 1), NEW_YORK, False),
        (utc(LAST_YEAR, 12, 31, 15), "Asia/Tokyo", False),
        (utc(FIRST_YEAR, 1, 1, 4), NEW_YORK, False),
        (date(1, 1, 1), "Asia/Tokyo", False),
        (date(1, 1, 1), "UTC", False),
        (date(1, 1, 1), NEW_YORK, False),
        (utc(1, 1, 1), "UTC", False),
        (utc(1, 1, 1, 3), NEW_YORK, False),
        (datetime.max.replace(tzinfo=UTC), "Asia/Tokyo", False),
        (utc(9999, 12, 31, 15), "Asia/Tokyo", False),
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


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "Africa/Casablanca"])
@pytest.mark.parametrize("schedule", ["* * * * *", "@hourly", "@daily", "*/7 3 * * 1", "* * 29 2 *", "0,30 * 1,15 * *"])
def test_far_too_many_are_refused_without_looking_at_one(schedule, zone, monkeypatch):
    """Enumerating even the allowed number takes many seconds and would block all other planning."""
    monkeypatch.setattr(
        "retrofill_core.domain.schedule.Ticks.since", lambda *_: pytest.fail("the ticks were enumerated")
    )
    with pytest.raises(TooManyIntervals):
        boundaries(schedule, zone, utc(FIRST_YEAR, 2, 1), utc(LAST_YEAR, 12, 30), 500_000)
