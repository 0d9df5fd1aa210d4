"""Scripts that write partitions by a table's name, or files into the directory that they get instead of the table's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.hive import HiveLake
from tests.support.lake import Attempt
from tests.support.tiers import some

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.sdk.texts import Table

KINDS = (
    "USING parquet in table_server",
    "USING csv in table_server",
    "STORED AS PARQUET in embedded_metastore",
    "STORED AS TEXTFILE in embedded_metastore",
    "USING parquet in standalone_metastore",
)
# What a script does with the rows of its day, the name of the table and its directory.
Writes = Callable[[Any, str, str], object]


def format_of(name: str, rows: Any) -> str:
    about = {row.col_name: row.data_type for row in rows.sparkSession.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()}
    return "parquet" if about["Provider"] == "hive" else str(about["Provider"])


def by_root(rows: Any, name: str, directory: str) -> None:
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("day")
    writer.format(format_of(name, rows)).save(directory)


WAYS: dict[str, Writes] = {
    "INSERT by name": lambda rows, name, _: rows.select("n", "note", "day").write.insertInto(name, overwrite=True),
    "by its root": by_root,
    "by the path of its day": lambda rows, name, directory: (
        rows.drop("day").write.format(format_of(name, rows)).save(f"{directory}/day=2013-01-01")
    ),
}


@pytest.fixture(params=some(KINDS, KINDS[0]))
def lake(request: pytest.FixtureRequest) -> Iterator[HiveLake]:
    storage, _, server = str(request.param).partition(" in ")
    with HiveLake(str(request.getfixturevalue(server)), storage) as made:
        made.spark.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")
        for day in (1, 2):
            made.spark.sql(f"INSERT INTO {made.table} (n, note, day) VALUES (7, 'old', DATE'2013-01-0{day}')").collect()
        yield made


def lent(lake: HiveLake, attempt: Attempt, **more: Any) -> tuple[str, str]:
    """The name and the directory that a script gets."""
    name = attempt.staging.tables.lend("a", lake.spark, Table(lake.table, "day", **more))
    return name, attempt.staging.tables.location(lake.spark, name)


def finish(lake: HiveLake, attempt: Attempt) -> list[str]:
    attempt.staging.tables.take_back("a", lake.spark)
    attempt.outputs = attempt.staging.seal()
    attempt.publish()
    return lake.content()


# Spark writes such text files only by the name of a table.
CASES = [(kind, way) for kind in KINDS for way in WAYS if "TEXTFILE" not in kind or way == "INSERT by name"]


@pytest.mark.parametrize(("lake", "way"), some(CASES, (KINDS[0], "by its root")), indirect=["lake"])
def test_what_a_script_wrote_replaces_its_day_and_an_undo_brings_that_back(lake: HiveLake, way: str) -> None:
    attempt = lake.keeping(1, 1)
    name, directory = lent(lake, attempt)
    WAYS[way](attempt.rows(("2013-01-01", 1, "a"), ("2013-01-01", 2, "b")), name, directory)
    assert lake.content() == ["1 old", "2 old"], "invisible before it is published"
    assert finish(lake, attempt) == ["1 a", "1 b", "2 old"]
    assert lake.staged_only() == []
    lake.undo(2, undoes=1).publish()
    assert lake.content() == ["1 old", "2 old"]


REFUSED: dict[str, tuple[Writes, str]] = {
    "nothing": (lambda *_: None, "task 'a' wrote nothing to the table that it was given instead of .* sparse=True"),
    "no partition": (
        lambda rows, _, directory: rows.write.mode("append").parquet(directory),
        r"the script wrote part-.* into the directory that it was given, but only files in partitions are published",
    ),
    "another day": (
        lambda rows, name, directory: by_root(rows.selectExpr("date_add(day, 1) day", "n", "note"), name, directory),
        "has day = 2013-01-02, outside of the interval 2013-01-01",
    ),
    "another type": (
        lambda rows, name, directory: by_root(rows.selectExpr("day", "note n", "note"), name, directory),
        "",
    ),
}


@pytest.mark.parametrize("lake", KINDS[:1], indirect=True)
@pytest.mark.parametrize("case", some(REFUSED, "no partition"))
def test_what_cannot_be_published_is_refused_and_no_file_of_it_is_left(lake: HiveLake, case: str) -> None:
    writes, why = REFUSED[case]
    attempt = lake.keeping(1, 1)
    writes(attempt.rows(("2013-01-01", 1, "a")), *lent(lake, attempt))
    with pytest.raises(CannotStage if why else Exception, match=why or None):
        attempt.staging.tables.take_back("a", lake.spark)
    attempt.staging.discard()
    assert (lake.content(), lake.staged()) == (["1 old", "2 old"], [])
    if case != "no partition":
        # Of files in no partition, a metastore knows nothing.
        assert [name for name in files(lake) if "/_retrofill/" in name] == []


@pytest.mark.long
def test_a_script_may_add_to_the_rows_of_its_day(lake: HiveLake) -> None:
    attempt = lake.keeping(1, 1)
    name, _ = lent(lake, attempt, with_rows=True)
    attempt.rows(("2013-01-01", 1, "a")).select("n", "note", "day").write.insertInto(name)
    assert finish(lake, attempt) == ["1 a", "1 old", "2 old"]


@pytest.mark.long
def test_what_a_lost_attempt_wrote_is_dropped_by_the_next_one(lake: HiveLake) -> None:
    lost = lake.keeping(1, 1)
    WAYS["INSERT by name"](lost.rows(("2013-01-01", 1, "lost")), *lent(lake, lost))
    attempt = lake.keeping(1, 1)
    WAYS["INSERT by name"](attempt.rows(("2013-01-01", 1, "a")), *lent(lake, attempt))
    assert finish(lake, attempt) == ["1 a", "2 old"]


def files(lake: HiveLake) -> list[str]:
    (row,) = [r for r in lake.spark.sql(f"DESCRIBE TABLE EXTENDED {lake.table}").collect() if r.col_name == "Location"][
        :1
    ]
    found = lake.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    return sorted(each.path for each in found.load(row.data_type).select("path").collect())
