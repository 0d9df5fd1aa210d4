"""Tables that a script writes instead of its target, with plain Spark: how it may, and what of it is published."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.lake import FORMATS, PATH, Attempt, Lake
from tests.support.tiers import some

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.sdk.texts import Table

Writes = Callable[[Any, Any, str], object]


@pytest.fixture(params=some([*FORMATS, PATH], "iceberg"))
def lake(request: pytest.FixtureRequest, table_server: str, tmp_path: Path) -> Iterator[Lake]:
    """A table with a row of each of three days."""
    with Lake(table_server, str(request.param), tmp_path) as made:
        for day in (1, 2, 3):
            made.spark.sql(f"INSERT INTO {made.table} VALUES (DATE '2013-01-0{day}', {day}, 'old')").collect()
        yield made


def run(spark: Any, statement: str) -> object:
    return spark.sql(statement).collect()


def replaces(spark: Any, rows: Any, name: str) -> None:
    if name.startswith("delta.`"):
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", "day = DATE '2013-01-02'")
        writer.save(name.split("`")[1])
    else:
        rows.writeTo(name).overwritePartitions()


NAMED = pytest.mark.parametrize("lake", FORMATS, indirect=True)
WAYS: dict[str, Writes] = {
    "append": lambda _, rows, name: rows.writeTo(name).append(),
    "insertInto": lambda _, rows, name: rows.write.insertInto(name, overwrite=True),
    "saveAsTable": lambda _, rows, name: (
        rows.write.mode("append").format("delta" if "delta" in name else "iceberg").saveAsTable(name)
    ),
    "replaced day": replaces,
    "another order and fewer commits": lambda _, rows, name: (
        rows.select("note", "n", "day").writeTo(name).append(),
        rows.writeTo(name).append(),
    ),
    "INSERT": lambda spark, _, name: run(
        spark, f"INSERT INTO {name} (n, day, note) VALUES (0, DATE '2013-01-02', 'a')"
    ),
}


def lent(lake: Lake, attempt: Attempt, **more: Any) -> str:
    return attempt.staging.tables.lend("a", lake.spark, Table(lake.table, "day", **more))


def finish(lake: Lake, attempt: Attempt) -> list[str]:
    attempt.staging.tables.take_back("a", lake.spark)
    attempt.outputs = attempt.staging.seal()
    attempt.publish()
    return lake.content()


@pytest.mark.parametrize(
    ("lake", "way"),
    some(
        itertools.product([*FORMATS, PATH], WAYS), ("iceberg", "append"), ("iceberg", "INSERT"), (PATH, "replaced day")
    ),
    indirect=["lake"],
)
def test_what_a_script_wrote_replaces_the_rows_of_its_interval(lake: Lake, way: str) -> None:
    attempt = lake.attempt(day=2)
    name = lent(lake, attempt)
    before = lake.version()
    WAYS[way](lake.spark, attempt.rows(("2013-01-02", 0, "a")), name)
    assert lake.version() == before
    written = ["2 a", "2 a"] if way.startswith("another") else ["2 a"]
    assert finish(lake, attempt) == ["1 old", *written, "3 old"]
    assert lake.staged() == []


@pytest.mark.long
def test_a_script_may_get_the_directory_of_a_delta_table(lake: Lake) -> None:
    attempt = lake.attempt(day=2)
    name = lent(lake, attempt)
    if lake.format == "iceberg":
        with pytest.raises(CannotStage, match="only Iceberg knows which files are in its table"):
            attempt.staging.tables.location(lake.spark, name)
        return
    directory = attempt.staging.tables.location(lake.spark, name)
    attempt.rows(("2013-01-02", 0, "a")).write.format("delta").mode("append").save(directory)
    assert finish(lake, attempt) == ["1 old", "2 a", "3 old"]


@pytest.mark.long
def test_a_merge_finds_the_rows_of_its_interval_and_no_others(lake: Lake) -> None:
    attempt = lake.attempt(day=2)
    name = lent(lake, attempt, with_rows=True)
    attempt.rows(("2013-01-02", 2, "new"), ("2013-01-02", 1, "more")).createOrReplaceTempView("changes")
    run(
        lake.spark,
        f"MERGE INTO {name} t USING changes s ON t.n = s.n WHEN MATCHED THEN UPDATE SET note = s.note "
        "WHEN NOT MATCHED THEN INSERT *",
    )
    assert finish(lake, attempt) == ["1 old", "2 more", "2 new", "3 old"]


@pytest.mark.long
def test_a_range_publishes_all_that_its_script_wrote(lake: Lake) -> None:
    attempt = lake.attempt(day=2, runs=2)
    name = lent(lake, attempt)
    attempt.rows(("2013-01-02", 0, "a"), ("2013-01-03", 0, "b")).writeTo(name).append()
    assert finish(lake, attempt) == ["1 old", "2 a", "3 b"]


@pytest.mark.long
def test_an_interval_may_become_empty_where_that_is_declared(lake: Lake) -> None:
    attempt = lake.attempt(day=2)
    lent(lake, attempt, sparse=True)
    assert finish(lake, attempt) == ["1 old", "3 old"]


REFUSED: dict[str, tuple[Writes, str]] = {
    "nothing": (lambda *_: None, "task 'a' wrote nothing to the table that it was given instead of .* sparse=True"),
    "another day": (
        lambda _, rows, name: rows.selectExpr("date_add(day, 1) day", "n", "note").writeTo(name).append(),
        "has day = 2013-01-03, outside of the interval 2013-01-02",
    ),
    "no day": (
        lambda _, rows, name: rows.selectExpr("cast(null as date) day", "n", "note").writeTo(name).append(),
        "has no day",
    ),
    "a new column": (
        lambda spark, _, name: (
            run(spark, f"ALTER TABLE {name} ADD COLUMN more int"),
            run(spark, f"INSERT INTO {name} VALUES (DATE '2013-01-02', 1, 'a', 1)"),
        ),
        "has no column 'more': add it to the table, or drop it",
    ),
}


@pytest.mark.parametrize("case", some(REFUSED, "nothing", "another day"))
def test_what_cannot_be_published_is_refused_in_one_line_and_nothing_is_left(lake: Lake, case: str) -> None:
    writes, why = REFUSED[case]
    attempt = lake.attempt(day=2)
    name = lent(lake, attempt)
    writes(lake.spark, attempt.rows(("2013-01-02", 0, "a")), name)
    with pytest.raises(CannotStage, match=why) as refused:
        attempt.staging.tables.take_back("a", lake.spark)
    assert "\n" not in str(refused.value)
    attempt.staging.discard()
    assert (lake.content(), lake.staged()) == (["1 old", "2 old", "3 old"], [])


@pytest.mark.long
def test_what_a_failed_try_wrote_is_forgotten(lake: Lake) -> None:
    attempt = lake.attempt(day=2)
    attempt.rows(("2013-01-02", 0, "failed")).writeTo(lent(lake, attempt)).append()
    attempt.staging.begin_try("a")
    attempt.rows(("2013-01-02", 0, "a")).writeTo(lent(lake, attempt)).append()
    assert finish(lake, attempt) == ["1 old", "2 a", "3 old"]
    assert lake.staged() == []


# Of tables that are named by their paths, nothing lists what is beside them, and they are not dropped by name.
@NAMED
def test_a_script_that_drops_its_table_is_told_so(lake: Lake) -> None:
    attempt = lake.attempt(day=2)
    run(lake.spark, f"DROP TABLE {lent(lake, attempt)}")
    with pytest.raises(CannotStage, match=r"the script dropped .*__retrofill_"):
        attempt.staging.tables.take_back("a", lake.spark)
    attempt.staging.discard()


@pytest.mark.long
@NAMED
def test_what_a_lost_attempt_wrote_is_dropped_by_the_next_one(lake: Lake) -> None:
    lost = lake.attempt(day=2)
    lost.rows(("2013-01-02", 0, "lost")).writeTo(lent(lake, lost)).append()
    attempt = lake.attempt(day=2)
    attempt.rows(("2013-01-02", 0, "a")).writeTo(lent(lake, attempt)).append()
    assert len(lake.staged()) == 1
    assert finish(lake, attempt) == ["1 old", "2 a", "3 old"]


def test_partitions_properties_and_rules_are_those_of_the_target(lake: Lake) -> None:
    if lake.format == "delta":
        run(lake.spark, f"ALTER TABLE {lake.table} ADD CONSTRAINT small CHECK (n < 10)")
        attempt = lake.attempt(day=2)
        name = lent(lake, attempt)
        with pytest.raises(Exception, match="CHECK constraint small"):
            attempt.rows(("2013-01-02", 10, "a")).writeTo(name).append()
        (detail,) = lake.spark.sql(f"DESCRIBE DETAIL {name}").collect()
        assert detail.partitionColumns == ["day"]
    else:
        odd = lake.create(
            f"{lake.table}odd", "day date, n bigint, `a b` string", "PARTITIONED BY (day, bucket(4, n), `a b`)"
        )
        name = lake.attempt().staging.tables.lend("a", lake.spark, Table(odd, "day"))
        assert (
            "PARTITIONED BY (day, bucket(4, n), `a b`)" in lake.spark.sql(f"SHOW CREATE TABLE {name}").collect()[0][0]
        )
