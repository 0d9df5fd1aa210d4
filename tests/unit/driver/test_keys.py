"""Values of a table's key for an interval, the condition for its rows, and what cannot be told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrofill.outputs.cannot_stage import NoSuchColumn
from retrofill.outputs.tables.checks import refuse_ambiguous
from retrofill.outputs.tables.key import Key, Values, key_of_table
from retrofill.protocol.launch import Interval
from retrofill.protocol.table_output import TableOutput
from retrofill.sdk.texts import Declared

NEW_YORK, UTC_ZONE = "America/New_York", "UTC"
MINUTE = timedelta(minutes=1)


def interval(start: str, end: str, zone: str = NEW_YORK) -> Interval:
    """From moments in UTC."""
    return Interval(*(datetime.fromisoformat(each + "+00:00").astimezone(ZoneInfo(zone)) for each in (start, end)))


def local(start: str, end: str, zone: str = NEW_YORK) -> Interval:
    """From what clocks show."""
    return Interval(*(datetime.fromisoformat(each).replace(tzinfo=ZoneInfo(zone)) for each in (start, end)))


def key(declared: Declared, type: str = "string", zone: str = "", **types: str) -> Key:
    names = [declared] if isinstance(declared, str) else list(declared)
    schema = [
        SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda name=name: types.get(name, type)))
        for name in names
    ]
    return key_of_table(declared, zone, schema, "t")


DAY = local("2013-01-01", "2013-01-02")


@pytest.mark.parametrize(
    ("declared", "type", "condition"),
    [
        ("day", "date", "`day` >= DATE '2013-01-01' AND `day` < DATE '2013-01-02'"),
        ("a b", "string", "`a b` = '2013-01-01'"),
        (
            "at",
            "timestamp",
            "`at` >= TIMESTAMP '2013-01-01 05:00:00 UTC' AND `at` < TIMESTAMP '2013-01-02 05:00:00 UTC'",
        ),
        (
            "at",
            "timestamp_ntz",
            "`at` >= TIMESTAMP_NTZ '2013-01-01 00:00:00' AND `at` < TIMESTAMP_NTZ '2013-01-02 00:00:00'",
        ),
        ({"dt": "%Y%m%d"}, "string", "`dt` = '20130101'"),
        ({"dt": "%Y%m%d"}, "int", "`dt` = 20130101"),
        ({"dt": "%Y%m%d"}, "bigint", "`dt` = 20130101L"),
        ({"dt": "%d.%m.%Y"}, "string", "`dt` = '01.01.2013'"),
        ({"dt": "%Y%j"}, "string", "`dt` = '2013001'"),
        ({"dt": "%G-W%V-%u"}, "string", "`dt` = '2013-W01-2'"),
        ({"y": "%Y", "m": "%m", "d": "%d"}, "int", "(`y` = 2013) AND ((`m` = 1) AND (`d` = 1))"),
        ({"y": "%Y", "m": "%-m", "d": "%-d"}, "string", "(`y` = '2013') AND ((`m` = '1') AND (`d` = '1'))"),
        ({"day": None, "m": "%m"}, "date", "(`day` = DATE '2013-01-01') AND (`m` = '01')"),
    ],
)
def test_the_rows_of_a_day(declared: Declared, type: str, condition: str) -> None:
    made = key(declared, type, m="string") if type == "date" and "m" in declared else key(declared, type)
    refuse_ambiguous(made, DAY)
    assert made.condition([DAY]) == condition


@pytest.mark.parametrize(
    ("declared", "type", "start", "end", "values"),
    [
        ({"dt": "%Y-%m"}, "string", "2024-12-01", "2025-01-01", [("2024-12",)]),
        ({"dt": "%Y"}, "smallint", "2024-01-01", "2025-01-01", [(2024,)]),
        ({"dt": "%G-W%V"}, "string", "2024-12-30", "2025-01-06", [("2025-W01",)]),
        ({"dt": "%Y%m%d"}, "string", "2024-12-31", "2025-01-01", [("20241231",)]),
        ({"dt": "%Y%m%d"}, "string", "2024-02-28", "2024-03-02", [("20240228",), ("20240229",), ("20240301",)]),
        (
            {"dt": "%Y-%m-%d", "h": "%H"},
            "string",
            "2024-01-01T22:00",
            "2024-01-02",
            [("2024-01-01", "22"), ("2024-01-01", "23")],
        ),
        ({"dt": "%Y%m%d%H%M"}, "bigint", "2024-01-01T22:58", "2024-01-01T23:00", [(202401012258,), (202401012259,)]),
        ({"dt": "%Y-%m-%dT%H%z"}, "string", "2024-07-01T22:00", "2024-07-01T23:00", [("2024-07-01T22-0400",)]),
    ],
)
def test_the_values_of_an_interval(declared: Declared, type: str, start: str, end: str, values: list[Values]) -> None:
    whole = local(start, end)
    refuse_ambiguous(key(declared, type), whole)
    assert key(declared, type).values(whole) == values


def test_a_day_is_all_of_its_hours_where_one_occurs_twice_or_not_at_all() -> None:
    hours = key({"dt": "%Y-%m-%dT%H"})
    for day, count in (("2013-11-03", 24), ("2013-03-10", 23)):
        whole = local(day, (date.fromisoformat(day) + timedelta(days=1)).isoformat())
        refuse_ambiguous(hours, whole)
        assert len(hours.values(whole)) == count


@pytest.mark.parametrize(
    ("start", "end", "refused"),
    [("04", "05", False), ("05", "06", True), ("06", "07", True), ("05", "07", False), ("07", "08", False)],
)
@pytest.mark.parametrize(("declared", "type"), [({"dt": "%Y%m%d%H"}, "string"), ("at", "timestamp_ntz")])
def test_a_part_of_an_hour_that_occurs_twice_cannot_be_told(
    declared: Declared, type: str, start: str, end: str, refused: bool
) -> None:
    hour = interval(f"2013-11-03T{start}:00", f"2013-11-03T{end}:00")
    if refused:
        with pytest.raises(NoSuchColumn, match="is in an hour that occurs twice: name a column of type timestamp, or"):
            refuse_ambiguous(key(declared, type), hour)
    else:
        refuse_ambiguous(key(declared, type), hour)
    for told in (key(declared, type, zone="UTC"), key("at", "timestamp"), key({"dt": "%Y%m%d%H%z"})):
        refuse_ambiguous(told, hour)


def test_adjacent_intervals_are_one_range_and_names_come_in_pieces() -> None:
    days = [local(f"2013-01-0{day}", f"2013-01-0{day + 1}") for day in (1, 2, 3, 5)]
    assert key("day", "date").condition(days) == (
        "(`day` >= DATE '2013-01-01' AND `day` < DATE '2013-01-04') OR (`day` >= DATE '2013-01-05' AND `day` < DATE '2013-01-06')"
    )
    assert key("at", "timestamp").condition(days).count("AND") == 2
    assert key("dt").condition(days) == "`dt` IN ('2013-01-01', '2013-01-02', '2013-01-03', '2013-01-05')"
    year = local("2013-01-01", "2014-01-01")
    one = key({"dt": "%Y%m%d%H"}, zone="UTC")
    refuse_ambiguous(one, year)
    assert (len(one.values(year)), one.condition([year]).count(" IN (")) == (8760, 44)
    two = key({"dt": "%Y-%m-%d", "h": "%H"}, zone="UTC")
    assert two.condition([year]).count(" IN (") <= 8


def test_the_day_that_samoa_skipped_is_nobodys() -> None:
    day = local("2011-12-29", "2011-12-31", "Pacific/Apia")
    refuse_ambiguous(key("day", "date"), day)
    assert key("day", "date").condition([day]) == "`day` >= DATE '2011-12-29' AND `day` < DATE '2011-12-30'"


@pytest.mark.parametrize(
    ("zone", "day"),
    [("America/Santiago", 8), ("Africa/Cairo", 26), ("America/Havana", 10), ("Asia/Beirut", 31)],
)
def test_a_day_that_begins_at_one_oclock_is_a_day(zone: str, day: int) -> None:
    month = {"America/Santiago": 9, "Africa/Cairo": 4}.get(zone, 3)
    start = datetime(2024, month, day, 1, tzinfo=ZoneInfo(zone))
    before, after = (
        datetime.combine(start.date() + timedelta(days=n), datetime.min.time(), start.tzinfo) for n in (-1, 1)
    )
    for type in ("date", "string", "timestamp_ntz"):
        for each in (Interval(before, start), Interval(start, after)):
            refuse_ambiguous(key("day", type), each)
    assert key("day").values(Interval(start, after)) == [(start.date().isoformat(),)]
    with pytest.raises(NoSuchColumn, match="begins or ends at"):
        refuse_ambiguous(key("day", "date"), Interval(start + timedelta(hours=1), after))


@pytest.mark.parametrize(
    ("declared", "type", "words"),
    [
        ("n", "int", "column 'n' is of type int, which tells no interval by itself: say what its numbers are"),
        ("n", "double", "column 'n' is of type double, which tells no interval: name one of type date, timestamp"),
        ("n", "binary", "is of type binary"),
        ("n", "string collate UTF8_LCASE", "is of type string collate"),
        ({}, "string", "name a column of t, or columns with formats"),
        (["dt"], "string", "name a column of t, or columns with formats"),
        ({"dt": "%d/%m"}, "string", r"the formats \{'dt': '%d/%m'\} name no single day"),
        ({"y": "%Y", "w": "%V"}, "int", "name no single day"),
        ({"y": "%Y", "m": "%m", "w": "%V"}, "int", "name no single day"),
        ({"dt": "%Y-%m", "h": "%H"}, "string", "name no single day"),
        ({"dt": "%Y-%m-%d", "h": "%M"}, "string", "have minutes without hours"),
        ({"dt": "%Y-%m-%d%z"}, "string", "have %z without %H"),
        ({"dt": "%y%m%d"}, "string", "the format '%y%m%d' of column 'dt' has '%y': use %Y %m"),
        ({"dt": "%b %d %Y"}, "string", "has '%b'"),
        ({"dt": "%Y%m%d%"}, "string", "has '%': use"),
        ({"dt": "%Y%-m%d"}, "string", "does not tell where %-m ends: use %m"),
        ({"dt": "%Y'%m%d"}, "string", "may have only letters"),
        ({"dt": "%Y-%m-%d"}, "int", "is not that of a number"),
        ({"dt": "day"}, "string", "has no directives"),
        ({"dt": 7}, "string", "has no directives"),
        ({"at": "%Y"}, "timestamp", "is of type timestamp, which has no format"),
        ({"at": None, "b": None}, "timestamp", "is a timestamp, which tells an interval alone"),
        ({"day": "%Y%m%d"}, "date", "is of type date, which has no format"),
        ({"n": None}, "int", "tells no interval by itself"),
    ],
)
def test_what_names_no_unit_of_time_is_refused(declared: Any, type: str, words: str) -> None:
    with pytest.raises(NoSuchColumn, match=words):
        key(declared, type)


@pytest.mark.parametrize(
    ("declared", "type", "start", "end", "words"),
    [
        ("day", "date", "2013-01-01T01:00", "2013-01-01T02:00", "has days or longer units, but .* 2013-01-01T01:00"),
        ("dt", "string", "2013-01-01T00:00", "2013-01-01T12:00", "begins or ends at 2013-01-01T12:00"),
        ({"dt": "%Y-%m"}, "string", "2013-01-01", "2013-01-02", "begins or ends at 2013-01-02T00:00"),
        ({"dt": "%G%V"}, "string", "2013-01-01", "2013-01-08", "begins or ends at 2013-01-01T00:00"),
        ({"dt": "%Y%m%d%H"}, "string", "2013-01-01T00:30", "2013-01-01T01:30", "has hours, but"),
        ({"dt": "%Y%m%d%H%M"}, "string", "2013-01-01", "2014-01-01", "has more than 10,000 values"),
        (
            {"dt": "%Y%j"},
            "smallint",
            "2013-01-01",
            "2013-01-02",
            "'dt' is of type smallint, which is too small for 2013001",
        ),
    ],
)
def test_an_interval_of_other_units_is_refused(declared: Declared, type: str, start: str, end: str, words: str) -> None:
    with pytest.raises(NoSuchColumn, match=words):
        refuse_ambiguous(key(declared, type), local(start, end))


@pytest.mark.parametrize(
    ("zone", "type", "words"),
    [("UTC", "timestamp", "which needs none"), ("Mars/Base", "date", "this Python knows no such time zone")],
)
def test_a_zone_that_means_nothing_is_refused(zone: str, type: str, words: str) -> None:
    with pytest.raises(NoSuchColumn, match=words):
        key("c", type, zone=zone)


def test_names_may_be_in_another_time_zone_than_the_pipelines() -> None:
    day = local("2013-01-01", "2013-01-02")
    with pytest.raises(NoSuchColumn, match="begins or ends at 2013-01-01T05:00:00"):
        refuse_ambiguous(key("day", "date", zone="UTC"), day)
    hours = key({"dt": "%Y%m%d", "h": "%H"}, zone="UTC").values(day)
    assert (hours[0], hours[-1], len(hours)) == (("20130101", "05"), ("20130102", "04"), 24)


def test_without_data_about_a_time_zone_whole_days_can_be_told() -> None:
    offset = timezone(timedelta(hours=-5))
    day = Interval(datetime(2013, 1, 1, tzinfo=offset), datetime(2013, 1, 2, tzinfo=offset))
    hour = Interval(datetime(2013, 1, 1, 1, tzinfo=offset), datetime(2013, 1, 1, 2, tzinfo=offset))
    for made in (key("day", "date"), key("at", "timestamp_ntz"), key({"dt": "%Y%m%d%H"})):
        refuse_ambiguous(made, day)
    assert key({"dt": "%Y%m%d%H"}).values(day)[-1] == ("2013010123",)
    with pytest.raises(NoSuchColumn, match="this Python has no data about the pipeline's: use Python 3"):
        refuse_ambiguous(key("at", "timestamp_ntz"), hour)
    with pytest.raises(NoSuchColumn, match="this Python has no data about the time zone of the pipeline"):
        refuse_ambiguous(key({"dt": "%Y%m%d%H%z"}), day)
    for told in (key({"dt": "%Y%m%d%H"}, zone="UTC"), key("at", "timestamp")):
        refuse_ambiguous(told, hour)


@pytest.mark.parametrize(
    "made",
    [
        key("day", "date"),
        key("dt"),
        key("at", "timestamp"),
        key("day", "date", zone="UTC"),
        key({"a b": "%Y%m%d", "h,": "%H"}, h="int"),
        key({"day": None, "hour": "%H"}, day="date"),
    ],
)
def test_a_key_is_text_in_an_output(made: Key) -> None:
    output = TableOutput("t", "staged", made.column, made.type, "delta", formats=made.formats)
    again = TableOutput.of(str(output))
    assert again is not None
    assert Key.of(again) == made


def test_one_column_needs_no_formats() -> None:
    for type, condition in (
        ("date", "`day` >= DATE '2013-01-01' AND `day` < DATE '2013-01-02'"),
        ("string", "`day` = '2013-01-01'"),
    ):
        before = TableOutput.of(f"table:t?staged=s&column=day&type={type}&format=delta")
        assert before is not None
        assert Key.of(before).condition([DAY]) == condition


@lru_cache(None)
def naive(formats: Sequence[str], zone: str, moment: datetime) -> tuple[str, ...]:
    """What Python's own formatting says."""
    there = moment.astimezone(ZoneInfo(zone))
    return tuple(there.strftime(each) for each in formats)


def between(formats: Sequence[str], zone: str, start: datetime, end: datetime) -> Iterator[tuple[str, ...]]:
    """Of every quarter of an hour."""
    while start < end:
        yield naive(formats, zone, start)
        start += 15 * MINUTE


FORMATS = [
    ("%Y-%m-%d",),
    ("%Y%m%d%H",),
    ("%Y-%m-%d", "%H"),
    ("%Y", "%m", "%d"),
    ("%Y-%m",),
    ("%G-%V",),
    ("%Y%j",),
    ("%G%V%u", "%H%M"),
    ("%Y-%m-%d %H%z",),
]
ZONES = [
    *("UTC", NEW_YORK, "Australia/Lord_Howe", "Asia/Kathmandu", "America/Havana", "Pacific/Apia", "Asia/Beirut"),
    *("Europe/London", "America/St_Johns", "Africa/Casablanca", "America/Asuncion", "Antarctica/Troll"),
]
LENGTHS = [15, 30, 60, 90, 120, 180, 1380, 1440, 1500, 2880, 10080, 43200]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.sampled_from(ZONES),
    st.integers(0, 4 * 24 * 366 * 3),
    st.sampled_from(LENGTHS),
    st.sampled_from(["", "UTC"]),
)
def test_values_are_those_of_the_intervals_moments_and_of_no_others(
    formats: Sequence[str], zone: str, quarters: int, minutes: int, of_key: str
) -> None:
    check(formats, zone, datetime(2011, 1, 1, tzinfo=UTC) + quarters * 15 * MINUTE, minutes, of_key)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("formats", [FORMATS[1], FORMATS[7]])
def test_values_around_the_clock_changes_of_a_year(formats: Sequence[str], zone: str) -> None:
    moment, there = datetime(2011, 1, 1, tzinfo=UTC), ZoneInfo(zone)
    while moment.year == 2011:
        moment += timedelta(hours=1)
        if moment.astimezone(there).utcoffset() != (moment - timedelta(hours=1)).astimezone(there).utcoffset():
            for quarters in range(-9, 6):
                for minutes in (30, 60, 120):
                    check(formats, zone, moment + quarters * 15 * MINUTE, minutes, "")


def check(formats: Sequence[str], zone: str, start: datetime, minutes: int, of_key: str) -> None:
    if "%M" in formats[-1]:
        # A minute's values are many, and the naive ones are of quarters of an hour.
        minutes = min(minutes, 1440)
    end = start + minutes * MINUTE
    whole = Interval(start.astimezone(ZoneInfo(zone)), end.astimezone(ZoneInfo(zone)))
    made = key({f"c{number}": format for number, format in enumerate(formats)}, zone=of_key)
    names = partial(between, formats, of_key or zone)
    wanted = list(dict.fromkeys(names(start, end)))
    margin = timedelta(days=32 if formats in (("%Y-%m",), ("%G-%V",)) else 2)
    alone = set(wanted).isdisjoint([*names(start - margin, start), *names(end, end + margin)])
    try:
        refuse_ambiguous(made, whole)
    except NoSuchColumn:
        assert not alone
        return
    assert alone
    values = made.values(whole)
    if "%M" in formats[-1]:
        values = [value for value in values if int(str(value[-1])[2:4]) % 15 == 0]
    assert values == wanted
