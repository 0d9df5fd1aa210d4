"""Publishing an interval changes its own rows only: keys of all kinds, layouts, time zones, and both formats.

Each cell is right or refused when staged. What is right is computed by plain Python from the moments of the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache

import pytest
from tests.support.keyed import Keyed, Span, Table
from tests.support.lake import FORMATS, Lake
from tests.support.tiers import covering, some

from retrofill.outputs.cannot_stage import CannotStage, NoSuchColumn
from retrofill.protocol.table_output import TableOutput

NEW_YORK = "America/New_York"
DAY = "%Y-%m-%d"

KEYS = {
    "timestamp": Keyed("at", {"at": ("timestamp", "")}, [("null",)]),
    "timestamp_ntz": Keyed("at", {"at": ("timestamp_ntz", "")}, [("null",)]),
    "date": Keyed("day", {"day": ("date", "")}, [("null",)]),
    "text of days": Keyed("dt", {"dt": ("string", DAY)}, [("null",)]),
    "digits of days": Keyed(
        {"dt": "%Y%m%d"},
        {"dt": ("string", "%Y%m%d")},
        [("null",), ("''",), ("'2024-12-31'",), ("'20241231 '",), ("'unknown'",)],
    ),
    "numbers of days": Keyed(
        {"dt": "%Y%m%d"}, {"dt": ("int", "%Y%m%d")}, [("null",), ("2024",), ("-20241231",), ("0",)]
    ),
    "months": Keyed(
        {"dt": "%Y-%m"}, {"dt": ("string", "%Y-%m")}, [("null",), ("'2022-1'",), ("'2022-10-01'",), ("'2022'",)]
    ),
    "weeks": Keyed({"w": "%G-W%V"}, {"w": ("string", "%G-W%V")}, [("null",), ("'2025-W1'",)]),
    "date and hour": Keyed(
        {"day": None, "hour": "%H"},
        {"day": ("date", ""), "hour": ("int", "%H")},
        [("null", "5"), ("DATE '2013-11-03'", "null")],
    ),
    "year, month, day": Keyed(
        {"y": "%Y", "m": "%-m", "d": "%d"},
        {"y": ("int", "%Y"), "m": ("string", "%-m"), "d": ("string", "%d")},
        [("2013", "'11'", "null"), ("2013", "'11'", "'3'"), ("null", "'11'", "'03'")],
    ),
    "hours": Keyed({"dt": "%Y%m%d%H"}, {"dt": ("bigint", "%Y%m%d%H")}, [("null",), ("20131103",)]),
    "hours in UTC": Keyed(
        {"dt": "%Y-%m-%d-%H"}, {"dt": ("string", "%Y-%m-%d-%H")}, [("null",), ("'2013-11-03'",)], zone="UTC"
    ),
}
SPANS = {
    "first of two hours": Span(NEW_YORK, "2013-11-03T05:00", "2013-11-03T06:00"),
    "second of two hours": Span(NEW_YORK, "2013-11-03T06:00", "2013-11-03T07:00"),
    "hour in UTC": Span("UTC", "2013-11-03T06:00", "2013-11-03T07:00"),
    "long day": Span("America/Denver", "2013-11-03T06:00", "2013-11-04T07:00"),
    "short day": Span(NEW_YORK, "2013-03-10T05:00", "2013-03-11T04:00"),
    "half an hour longer": Span("Australia/Lord_Howe", "2013-04-06T13:00", "2013-04-07T13:30"),
    "ordinary day": Span("Asia/Kathmandu", "2013-05-01T18:15", "2013-05-02T18:15"),
    "end of a year": Span("UTC", "2024-12-31T00:00", "2025-01-01T00:00"),
    "month": Span(NEW_YORK, "2022-10-01T04:00", "2022-11-01T04:00"),
    "week": Span("Europe/Berlin", "2024-12-29T23:00", "2025-01-05T23:00"),
}
SESSIONS = ("UTC", NEW_YORK, "Australia/Lord_Howe", "Asia/Kathmandu", "+09:00")


def layouts(format: str, key: Keyed) -> Mapping[str, str]:
    """How a table may be laid out. Iceberg replaces whole files: each row has its own if they are not those of the key."""
    names = ", ".join(key.columns)
    (type, _), *more = key.columns.values()
    found = {"by the key": f"PARTITIONED BY ({names})"}
    if format == "delta":
        found |= {"unpartitioned": "", "clustered": f"CLUSTER BY ({names})"}
    else:
        found |= {"by something else": "PARTITIONED BY (n)"}
        if not more:
            transform = {"timestamp": "hours({})", "timestamp_ntz": "hours({})", "date": "days({})"}.get(
                type, "truncate(9, {})"
            )
            found |= {"by a transform": f"PARTITIONED BY ({transform.format(names)}, n)"}
    return found


def cells() -> Iterator[tuple[str, str, str, str, str]]:
    """All keys with all intervals in both formats; layouts and sessions take turns."""
    turn = itertools.count()
    for format, (key, made), span in itertools.product(FORMATS, KEYS.items(), SPANS):
        number = next(turn)
        if is_cut(key, span) and number % 4:
            # Refused before anything is looked at in the table: tests/unit/driver/test_keys.py has these.
            continue
        names = list(layouts(format, made))
        yield format, key, names[number % len(names)], span, SESSIONS[number % len(SESSIONS)]
    for format, session, layout in itertools.product(FORMATS, SESSIONS, range(3)):
        names = list(layouts(format, KEYS["timestamp"]))
        yield format, "timestamp", names[layout], "hour in UTC", session


@cache
def is_cut(key: str, span: str) -> bool:
    """Whether the interval shares a value of the key with others."""
    return KEYS[key].columns.get("at", ("", ""))[0] != "timestamp" and not SPANS[span].is_alone(KEYS[key])


def refusal(format: str, key: str, layout: str, span: str, session: str) -> str | None:
    """Why a cell must be refused."""
    keyed, interval = KEYS[key], SPANS[span]
    types = [type for type, _ in keyed.columns.values()]
    if is_cut(key, span):
        return "begins or ends at|occurs twice"
    if format == "delta" and layout == "by the key" and "timestamp" in types and session[0] not in "U+":
        return "is partitioned by the timestamp 'at'"
    inside = {keyed.literals(each, interval.zone) for each in interval.moments() if interval.has(each)}
    ranges = types in (["timestamp"], ["timestamp_ntz"], ["date"])
    if format == "iceberg" and layout != "by the key" and not ranges and len(inside) > 1:
        return "is not partitioned by"
    return None


def values(cell: tuple[str, str, str, str, str]) -> Iterator[tuple[str, ...]]:
    """What ``make test`` has at least once: each refusal, and published cells of the types of each key and of each layout."""
    format, key, layout, span, session = cell
    why = refusal(format, key, layout, span, session)
    if why is not None:
        yield format, why
        return
    if format == "iceberg":
        yield from (("layout", layout), ("type", *(type for type, _ in KEYS[key].columns.values())))


CELLS = list(dict.fromkeys(cells()))
USUAL = covering(CELLS, values)


@pytest.fixture(scope="module")
def lakes(table_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Lake]]:
    with ExitStack() as opened:
        opened.enter_context(pytest.MonkeyPatch.context()).setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        yield {each: opened.enter_context(Lake(table_server, each, tmp_path_factory.mktemp(each))) for each in FORMATS}


@pytest.mark.parametrize(("format", "key", "layout", "span", "session"), some(CELLS, *USUAL))
def test_only_the_rows_of_the_interval_are_replaced(
    lakes: Mapping[str, Lake], format: str, key: str, layout: str, span: str, session: str
) -> None:
    keyed, interval = KEYS[key], SPANS[span]
    table = Table(lakes[format], keyed, interval, layouts(format, keyed)[layout])
    before = table.content()
    assert len(before) == len(table.rows)
    neighbors = {row for row in before if row[0] in table.outside}
    new = {n + 5000: row for n, row in table.rows.items() if n not in table.outside}
    table.zones(session)
    why = refusal(format, key, layout, span, session)
    if why is not None:
        with pytest.raises(CannotStage, match=why) as caught:
            table.stage(table.attempt(1), new)
        assert len(str(caught.value).splitlines()) == 1
        assert table.content() == before
    else:
        for run_id, rows in ((1, new), (2, {})):
            attempt = table.attempt(run_id)
            table.stage(attempt, rows)
            attempt.publish()
            assert table.content() == neighbors | {(n + 5000, *row) for n, *row in before - neighbors if rows}
            table.zones(session)
    table.drop()


@pytest.mark.long
@pytest.mark.parametrize("format", FORMATS)
def test_an_undo_restores_the_interval_alone(lakes: Mapping[str, Lake], format: str) -> None:
    for key, span, layout in (("timestamp", "hour in UTC", -1), ("digits of days", "end of a year", 0)):
        keyed = KEYS[key]
        table = Table(lakes[format], keyed, SPANS[span], list(layouts(format, keyed).values())[layout])
        before = table.content()
        table.zones(NEW_YORK)
        attempt = table.attempt(1)
        table.stage(attempt, {})
        attempt.publish()
        (text,) = attempt.outputs[1]
        output = TableOutput.of(text)
        assert output is not None
        undo = table.attempt(2, restores=1)
        undo.staging.tables.restore("restore", undo.spark, output)
        undo.outputs = undo.staging.seal()
        undo.publish()
        assert table.content() == before
        table.drop()


@pytest.mark.parametrize("format", FORMATS)
def test_text_of_another_format_is_refused_until_the_format_is_named(lakes: Mapping[str, Lake], format: str) -> None:
    span = SPANS["end of a year"]
    digits = KEYS["digits of days"]
    table = Table(lakes[format], Keyed("dt", digits.columns), span, "PARTITIONED BY (dt)")
    with pytest.raises(
        NoSuchColumn, match=r"has '20\d{6}', which is no date like 2013-01-31: say how .* column=\{\"dt\": \"%Y%m%d\"\}"
    ):
        table.stage(table.attempt(1), {})
    table.key = Keyed({"dt": DAY}, digits.columns)
    before = table.content()
    attempt = table.attempt(2)
    table.stage(attempt, {5000: ("'2024-12-31'",)})
    attempt.publish()
    assert table.content() == before | {(5000, "2024-12-31")}
    with pytest.raises(CannotStage, match=r"has dt = 20241231, outside of the interval .* with dt as %Y-%m-%d"):
        table.stage(table.attempt(3), {5000: ("'20241231'",)})
    table.drop()


@pytest.mark.long
def test_a_delta_table_that_is_gone_is_not_created_by_a_publication(lakes: Mapping[str, Lake]) -> None:
    lake = lakes["delta"]
    table = Table(lake, KEYS["date"], SPANS["end of a year"], "")
    attempt = table.attempt(1)
    table.stage(attempt, {})
    table.drop()
    with pytest.raises(Exception, match=r"DELTA_MISSING_DELTA_TABLE|TABLE_OR_VIEW_NOT_FOUND|DELTA_TABLE_NOT_FOUND"):
        attempt.publish()
    assert not lake.spark.catalog.tableExists(table.name)
