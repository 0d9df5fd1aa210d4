"""Names of partitions, and the SQL that addresses them, without Spark."""

from __future__ import annotations

from collections import namedtuple
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.tables import hive_records
from retrofill.outputs.tables.hive import HiveTarget
from retrofill.outputs.tables.hive_partitions import Partitions, Spec, describe, name_of, text
from retrofill.outputs.tables.key import Key, KeyColumn
from retrofill.protocol.launch import Interval

Described = namedtuple("Described", "col_name data_type")
Shown = namedtuple("Shown", "partition")
Property = namedtuple("Property", "key value")
# Columns may have any name.
TABLE = [
    ("Location", "string"),
    ("# Detailed Table Information", "string"),
    ("Day", "date"),
    ("n", "int"),
    ("c", "string"),
    ("# Partition Information", ""),
    ("# col_name", "data_type"),
    ("Day", "date"),
    ("n", "int"),
    ("c", "string"),
    ("", ""),
    ("# Detailed Table Information", ""),
    ("Location", "s3a://b/t/"),
    ("Provider", "PARQUET"),
    ("# Column Default Values", ""),
    ("Provider", "'hive'"),
]


class Session:
    """Answers what a metastore would."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.said: list[str] = []

    def sql(self, statement: str) -> Any:
        self.said.append(statement)
        shown = [Shown(each) for each in self.names]
        return Rows(shown if statement.startswith("SHOW") else [Described(*each) for each in TABLE])


class Rows(list[Any]):
    def collect(self) -> list[Any]:
        return self


def test_a_table_is_told_from_columns_of_any_name() -> None:
    found = describe(Session(), "t")
    assert (found.partitioned_by, found.location) == ({"Day": "date", "n": "int", "c": "string"}, "s3a://b/t")
    assert found.provider == "parquet", "a default of a column follows under the same name"


@pytest.mark.parametrize(
    ("name", "spec", "sql"),
    [
        ("Day=2013-01-02/n=7/c=x", "day=2013-01-02/n=7/c=x", "`day` = '2013-01-02', `n` = 7, `c` = 'x'"),
        ("day=d/n=1/c=a%2Fb%27%3D%25%5C", "day=d/n=1/c=a/b'=%\\", "`day` = 'd', `n` = 1, `c` = 'a/b\\'=%\\\\'"),
        (
            "day=d/n=1/c=__HIVE_DEFAULT_PARTITION__",
            "day=d/n=1/c=__HIVE_DEFAULT_PARTITION__",
            "`day` = 'd', `n` = 1, `c` = null",
        ),
    ],
)
def test_a_name_is_read_and_written(name: str, spec: str, sql: str) -> None:
    session = Session(name)
    partitions = Partitions(session, "t")
    (found,) = partitions.names()
    assert name_of(found) == spec
    partitions.set_location(found, "it's")
    assert session.said[-1] == f"ALTER TABLE t PARTITION ({sql}) SET LOCATION 'it\\'s'"


DAY = Interval(datetime(2013, 1, 2, tzinfo=UTC), datetime(2013, 1, 3, tzinfo=UTC))


@pytest.mark.parametrize(
    ("type", "format", "name", "is_its"),
    [
        ("string", "%Y-%m-%d", "2013-01-02", True),
        ("string", "%Y-%m-%d", "2013-1-2", False),
        ("string", "%Y-%m-%d", "__HIVE_DEFAULT_PARTITION__", False),
        ("date", "%Y-%m-%d", "2013-01-02", True),
        # Spark reads its rows as that day's, though it would not find the partition.
        ("date", "%Y-%m-%d", "2013-1-2", True),
        ("date", "%Y-%m-%d", "2013-01-03", False),
        ("date", "%Y-%m-%d", "__HIVE_DEFAULT_PARTITION__", False),
        ("int", "%Y%m%d", "20130102", True),
        ("int", "%Y%m%d", "020130102", True),
        ("int", "%Y%m%d", "__HIVE_DEFAULT_PARTITION__", False),
    ],
)
def test_the_partitions_of_an_interval(type: str, format: str, name: str, is_its: bool) -> None:
    found = Partitions(Session(f"c=x/day={name}"), "t").of_intervals(Key((KeyColumn("Day", type, format),)), [DAY])
    assert bool(found) == is_its


def test_many_partitions_are_added_by_few_statements() -> None:
    session = Session()
    specs: dict[Spec, str | None] = {(("n", str(number)),): None for number in range(250)}
    Partitions(session, "t").add(specs)
    assert [each.count("PARTITION (") for each in session.said[1:]] == [100, 100, 50]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("transactional", "TRUE", "t is a transactional Hive table, which Spark does not write"),
        ("skip.footer.line.count", "2", "t has skip.footer.line.count=2, but Spark writes no such lines"),
    ],
)
def test_tables_that_spark_would_write_in_another_way_are_refused(name: str, value: str, message: str) -> None:
    class Properties:
        def sql(self, _: str) -> Rows:
            return Rows([Property(name, value)])

    with pytest.raises(CannotStage, match=message):
        HiveTarget(Properties(), "t").refuse([])


def test_text_in_sql() -> None:
    assert text("a'b\\c") == "'a\\'b\\\\c'"


def test_a_record_is_over_after_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    staged = "t__retrofill_0a8198c9dc_t61v1w0_t61wwk0_25_1"
    today = date(2013, 1, 2)
    monkeypatch.setattr(hive_records, "today", lambda: today)
    over = [f"{staged}_kept_{today + timedelta(days=days):%Y%m%d}" for days in (-1, 0, 1)]
    assert [hive_records.is_over(name) for name in (*over, staged)] == [True, False, False, False]
