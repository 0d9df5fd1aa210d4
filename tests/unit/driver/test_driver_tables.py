"""Names of tables, outputs as text, the condition of an interval's rows, and the exchange of directories."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from retrofill.driver.cannot_stage import NoSuchColumn
from retrofill.driver.exchange import exchange
from retrofill.driver.interval import Interval
from retrofill.driver.tables.delta import _about
from retrofill.driver.tables.dropping import drop
from retrofill.driver.tables.interval import condition
from retrofill.driver.tables.output import TableOutput, joined, parts_of

NEW_YORK = ZoneInfo("America/New_York")


def interval(start: str, end: str, folds: tuple[int, int] = (0, 0)) -> Interval:
    """In New York."""
    moments = [
        datetime.fromisoformat(each).replace(tzinfo=NEW_YORK, fold=fold)
        for each, fold in zip((start, end), folds, strict=True)
    ]
    return Interval(*moments)


@pytest.mark.parametrize("parts", [["t"], ["lake", "db", "t"], ["delta", "/data/a b"], ["a.b", "c`d"], ["ünï", "9"]])
def test_names_are_quoted_where_they_must_be(parts: list[str]) -> None:
    assert parts_of(joined(parts)) == parts


@pytest.mark.parametrize("name", ["", "a.", ".a", "a..b", "a`b`", "`a"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a table"):
        parts_of(name)


def test_an_output_is_one_text() -> None:
    output = TableOutput("lake.db.`a?b&c`", "lake.db.`a?b&c__x`", "the day", "date", "iceberg", 3)
    assert TableOutput.of(str(output)) == output
    filled = replace(output, filled=("id", "a,b"), undoes=7)
    assert TableOutput.of(str(filled)) == filled
    assert TableOutput.of("/data/table:1/day=1") is None


DAY = interval("2013-01-01", "2013-01-02")


@pytest.mark.parametrize(
    ("type", "start", "end"),
    [
        ("date", "DATE '2013-01-01'", "DATE '2013-01-02'"),
        ("string", "'2013-01-01'", "'2013-01-02'"),
        ("timestamp", "TIMESTAMP '2013-01-01 05:00:00 UTC'", "TIMESTAMP '2013-01-02 05:00:00 UTC'"),
        ("timestamp_ntz", "TIMESTAMP_NTZ '2013-01-01 00:00:00'", "TIMESTAMP_NTZ '2013-01-02 00:00:00'"),
    ],
)
def test_the_rows_of_an_interval_in_the_pipelines_time_zone(type: str, start: str, end: str) -> None:
    assert condition("a b", type, DAY) == f"`a b` >= {start} AND `a b` < {end}"


def test_an_hour_that_occurs_twice_needs_a_time_zone() -> None:
    first = interval("2013-11-03 01:00", "2013-11-03 01:00", (0, 1))
    second = interval("2013-11-03 01:00", "2013-11-03 02:00", (1, 0))
    for each in (first, second):
        with pytest.raises(NoSuchColumn, match="is in an hour that occurs twice: name a column of type timestamp"):
            condition("at", "timestamp_ntz", each)
    ends = [condition("at", "timestamp", each).split(" AND ") for each in (first, second)]
    assert ends[0][1] == "`at` < TIMESTAMP '2013-11-03 06:00:00 UTC'"
    assert ends[1][0] == "`at` >= TIMESTAMP '2013-11-03 06:00:00 UTC'"


@pytest.mark.parametrize(
    ("zone", "day"),
    [("America/Santiago", 8), ("Africa/Cairo", 26), ("America/Havana", 10), ("Asia/Beirut", 31)],
)
def test_a_day_that_begins_at_one_oclock_is_a_day(zone: str, day: int) -> None:
    month = {"America/Santiago": 9, "Africa/Cairo": 4}.get(zone, 3)
    start = datetime(2024, month, day, 1, tzinfo=ZoneInfo(zone))
    assert start.astimezone(UTC).astimezone(ZoneInfo(zone)) == start
    before, after = (datetime.combine(start.date() + timedelta(days=n), time(), start.tzinfo) for n in (-1, 1))
    assert condition("day", "date", Interval(before, start)).endswith(f"< DATE '{start.date()}'")
    assert condition("day", "string", Interval(start, after)).startswith(f"`day` >= '{start.date()}'")
    with pytest.raises(NoSuchColumn, match="begins or ends at"):
        condition("day", "date", Interval(start + timedelta(hours=1), after))


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ('{"retrofill": {"runs": "7"}}', {"runs": "7"}),
        ('{"writer": "retrofill"}', {}),
        ('{"retrofill": "7"}', {}),
        ('loaded by "retrofill" job', {}),
        ('["retrofill"]', {}),
    ],
)
def test_what_others_say_of_their_commits_is_not_ours(said: str, about: dict[str, str]) -> None:
    assert _about(said) == about


def test_a_column_that_tells_no_interval_is_refused() -> None:
    with pytest.raises(NoSuchColumn, match="column 'day' has days, but an interval begins or ends at 2013-01-01T01:00"):
        condition("day", "date", interval("2013-01-01 01:00", "2013-01-01 02:00"))
    with pytest.raises(NoSuchColumn, match="column 'n' is of type int, which tells no interval"):
        condition("n", "int", DAY)


def test_directories_are_exchanged_or_nothing_happens(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (one / "file").touch()
    assert exchange(one, other) in (False, None)
    other.mkdir()
    done = exchange(one, other)
    assert (other / "file").exists() == (done is True)
    assert (one / "file").exists() == (done is None)


class Spark:
    """A session that accepts all statements."""

    def sql(self, statement: str) -> Spark:
        return self

    def collect(self) -> list[object]:
        return []


@pytest.mark.parametrize(("scheme", "goes"), [("", True), ("file://", True), ("s3a://", False), ("hdfs://host", False)])
def test_only_files_of_this_machine_are_deleted_with_a_table_that_a_path_names(
    tmp_path: Path, scheme: str, goes: bool
) -> None:
    staged = tmp_path / "t__retrofill_1"
    staged.mkdir()
    drop(Spark(), f"delta.`{scheme}{staged}`")
    assert staged.exists() is not goes


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize("folder", ["c#", "c?", "c%23"])
def test_a_dropped_table_is_deleted_where_its_whole_name_says_and_nothing_beside_it(
    tmp_path: Path, scheme: str, folder: str
) -> None:
    (tmp_path / "c").mkdir()
    staged = tmp_path / folder / "t__retrofill_1"
    staged.mkdir(parents=True)
    drop(Spark(), f"delta.`{scheme}{staged}`")
    assert not staged.exists()
    assert (tmp_path / "c").exists()


def test_a_directory_that_is_not_named_as_a_staged_table_is_never_deleted(tmp_path: Path) -> None:
    for name in (tmp_path, f"file://elsewhere{tmp_path}"):
        drop(Spark(), f"delta.`{name}`")
    assert tmp_path.exists()
