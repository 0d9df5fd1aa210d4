"""A schedule's data intervals in a time zone: days of other lengths, and ticks at both DST changes."""

from datetime import date, timedelta

import pytest
from tests.unit.domain.moments import BERLIN, NEW_YORK, SAO_PAULO, bounds, hours, local, utc

from retrofill_core.domain.schedule import range_bound


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


def test_a_day_whose_midnight_does_not_exist_begins_at_its_first_moment():
    day = date(2018, 11, 4)
    assert range_bound(day, SAO_PAULO, end=False) == utc(2018, 11, 4, 3)
    assert local("@daily", SAO_PAULO, day, day) == ["11-04T01:00-0200", "11-05T00:00-0200"]
    assert local("@daily", SAO_PAULO, date(2018, 11, 3), date(2018, 11, 3)) == ["11-03T00:00-0300", "11-04T01:00-0200"]


@pytest.mark.parametrize("schedule", ["*/15 3 * * *", "*/15 3 * 4 *"])
@pytest.mark.parametrize("day", [6, 7, 8])
def test_half_an_hours_change_takes_no_tick_of_a_later_hour(schedule, day):
    """On April 7, at 2:00, clocks go back to 1:30."""
    found = local(schedule, "Australia/Lord_Howe", date(2024, 4, day), date(2024, 4, day))
    assert [tick[:11] for tick in found[:4]] == [f"04-{day:02}T03:{minute:02}" for minute in (0, 15, 30, 45)]


def test_two_dates_that_alternate_are_both_in_real_time():
    """On November 7, a minute after midnight, clocks go back to 23:01 of November 6."""
    assert local("*/30 0,23 6,7 11 *", "America/St_Johns", date(2010, 11, 6), date(2010, 11, 7)) == [
        "11-06T00:00-0230",
        "11-06T00:30-0230",
        "11-06T23:00-0230",
        "11-06T23:30-0230",
        "11-07T00:00-0230",
        "11-06T23:30-0330",
        "11-07T00:00-0330",
        "11-07T00:30-0330",
        "11-07T23:00-0330",
        "11-07T23:30-0330",
        "11-06T00:00-0230",
    ]


def test_a_skipped_tick_of_one_day_fires_at_the_start_of_the_next():
    """On March 30, at 23:00, clocks go forward to midnight."""
    assert local("30 23 30 3 *", "America/Nuuk", date(2024, 3, 30), date(2024, 3, 31))[0] == "03-31T00:00-0100"
