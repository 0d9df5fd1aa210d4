"""A schedule's ticks for any cron expression and time zone: the same wherever the range begins, those
of real time, those of the library, and never fewer than estimated.
"""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.domain.moments import BERLIN, NEW_YORK, SAO_PAULO, boundaries, ticks, utc

from retrofill_core.domain.schedule import LAST_YEAR, Ticks, ticks_at_least

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
    ("America/St_Johns", utc(2010, 11, 6, 16)),  # one minute after midnight, an hour back
    ("America/Nuuk", utc(2024, 3, 30, 12)),  # at 23:00, an hour forward
    ("Pacific/Apia", utc(2011, 12, 29, 12)),  # a day that is skipped
    ("Pacific/Kwajalein", utc(1969, 9, 29, 12)),  # nearly a day that comes twice
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


@settings(deadline=None, max_examples=60)
@given(
    change=st.sampled_from(CHANGES),
    minute=FIELD,
    hour=HOUR,
    month=st.sampled_from(["*", "3,4,9-11"]),
    days=st.sets(st.integers(1, 31), max_size=2),
    begin=st.integers(0, 60),
)
def test_a_wildcard_follows_real_time(change, minute, hour, month, days, begin):
    """Compared with the simplest implementation: look at the clock every minute."""
    assume("*" in minute + hour)
    zone, before = change
    day = ",".join(map(str, sorted(days))) or "*"
    minutes = {"*": range(60), "*/15": range(0, 60, 15), "15,45": (15, 45)}.get(minute) or (int(minute),)
    of_day = {"*": range(24), "*/2": range(0, 24, 2), "1-3": (1, 2, 3), "0,2": (0, 2)}.get(hour) or (int(hour),)
    start = before + timedelta(hours=begin)
    clock = [(start + timedelta(minutes=n)).astimezone(ZoneInfo(zone)) for n in range(3 * 24 * 60)]
    expected = [
        shown.astimezone(UTC)
        for shown in clock
        if shown.minute in minutes
        and shown.hour in of_day
        and (shown.day in days or not days)
        and (month == "*" or shown.month in (3, 4, 9, 10, 11))
    ]
    end = clock[-1]
    found = ticks(f"{minute} {hour} {day} {month} *", zone, start)
    assert list(takewhile(lambda tick: tick <= end, found)) == expected


@settings(deadline=None, max_examples=60)
@given(
    zone=st.sampled_from(sorted(available_timezones())) | st.sampled_from([zone for zone, _ in CHANGES]),
    minute=FIELD,
    hour=HOUR,
    every=st.sampled_from(["* *"] * 6 + ["1,15 *", "L 3,10-12", "*/7 2", "* 3,10,11"]),
    weekday=st.sampled_from(["*", "0", "0L", "MON#1", "1-5"]),
    start=st.datetimes(datetime(1850, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))
    | st.datetimes(datetime(9998, 11, 1), datetime(9998, 12, 31), timezones=st.just(UTC))
    | st.datetimes(datetime(2, 1, 3), datetime(2, 1, 20), timezones=st.just(UTC))
    | st.sampled_from([moment for _, moment in CHANGES]),
)
def test_the_ticks_are_those_of_the_library(zone, minute, hour, every, weekday, start):
    """Where clocks change, only for fixed times: with wildcards, the library may skip ticks or add one."""
    schedule = f"{minute} {hour} {every} {weekday}"
    found = list(islice(ticks(schedule, zone, start), 300))
    assume("*" not in minute + hour or not found or not clock_changes(zone, start, found[-1]))
    assert found == list(islice(ticks_of_library(schedule, zone, start), 300))


def clock_changes(zone, first, last):
    days = (first + timedelta(days=n) for n in range(-1, (last - first).days + 3))
    return len({day.astimezone(ZoneInfo(zone)).utcoffset() for day in days}) > 1


def ticks_of_library(schedule, zone, start):
    last = None
    try:
        for tick in CronSim(schedule, (start - timedelta(minutes=1)).astimezone(ZoneInfo(zone))):
            moment = tick.astimezone(UTC)
            if tick.year <= LAST_YEAR and moment >= start and moment != last:
                yield moment
                last = moment
    except OverflowError:
        return


@settings(deadline=None, max_examples=60)
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
    assert found == most or ticks_at_least(Ticks(schedule, zone), first, last, enough=found + 1) <= found
