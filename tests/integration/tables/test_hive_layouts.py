"""Layouts of tables in a Hive metastore: an interval is replaced and restored, its neighbors stay, whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.hive import HiveLake
from tests.support.lake import MIDNIGHT, Attempt
from tests.support.tiers import some

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.protocol.table_output import TableOutput

STORAGE = (
    "USING parquet",
    "USING orc",
    "USING json",
    "USING csv OPTIONS (header true)",
    "STORED AS PARQUET",
    "STORED AS ORC",
    "STORED AS TEXTFILE",
    "ROW FORMAT DELIMITED FIELDS TERMINATED BY '|' STORED AS TEXTFILE",
    "ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' STORED AS TEXTFILE",
)
Value = Callable[[datetime], object]
# The columns, how a pipeline declares them, and their values.
KEYS: dict[str, tuple[str, Any, list[Value]]] = {
    "text": ("dt string", "dt", [lambda at: f"{at:%Y-%m-%d}"]),
    "date": ("dt date", "dt", [lambda at: at.date()]),
    "compact text": ("dt string", {"dt": "%Y%m%d"}, [lambda at: f"{at:%Y%m%d}"]),
    "integer": ("dt int", {"dt": "%Y%m%d"}, [lambda at: int(f"{at:%Y%m%d}")]),
    "integers": (
        "year int, month int, day int",
        {"year": "%Y", "month": "%m", "day": "%d"},
        [lambda at: at.year, lambda at: at.month, lambda at: at.day],
    ),
    "texts of mixed case": (
        "YearOf string, Month string, dayOf string",
        {"yearof": "%Y", "Month": "%m", "dayOf": "%d"},
        [lambda at: f"{at:%Y}", lambda at: f"{at:%m}", lambda at: f"{at:%d}"],
    ),
    "hours": ("dt string, hr int", {"dt": "%Y-%m-%d", "hr": "%H"}, [lambda at: f"{at:%Y-%m-%d}", lambda at: at.hour]),
}
COUNTRIES = ("ü ñ", "a/b'c\\d=e%f", None)
HOURS = (0, 23)
A_DAY = len(COUNTRIES) * len(HOURS)


@pytest.fixture(scope="module", params=some(["embedded_metastore", "standalone_metastore"], "embedded_metastore"))
def metastore(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def moments(day: int) -> list[datetime]:
    return [MIDNIGHT + timedelta(days=day - 1, hours=hour) for hour in HOURS]


class Layout:
    """A table with rows of three days, of each country."""

    def __init__(self, lake: HiveLake, key: str) -> None:
        self.lake = lake
        self.columns, self.declared, self._values = KEYS[key]
        self.names = ["note", *(each.split()[0] for each in self.columns.split(", ")), "Country"]
        self._schema = f"note string, {self.columns}, Country string"
        self.before = [self.row("before", at, of) for day in (1, 2, 3) for at in moments(day) for of in COUNTRIES]
        lake.spark.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")
        self.frame(self.before).write.insertInto(lake.table)

    def row(self, note: str, at: datetime, country: str | None) -> tuple[object, ...]:
        return (note, *(value(at) for value in self._values), country)

    def frame(self, rows: list[tuple[object, ...]]) -> Any:
        return self.lake.spark.createDataFrame(rows, self._schema).coalesce(1)

    def content(self) -> list[str]:
        self.lake.spark.sql(f"REFRESH TABLE {self.lake.table}")
        found = self.lake.spark.table(self.lake.table).select(*self.names).collect()
        # So Spark reads null of partitions by a SerDe.
        rows = [tuple(None if value == "__HIVE_DEFAULT_PARTITION__" else value for value in row) for row in found]
        return texts(rows)

    def publish(self, attempt: Attempt, rows: list[tuple[object, ...]]) -> None:
        attempt.staging.tables.stage("a", attempt.spark, self.frame(rows), self.lake.table, self.declared)
        attempt.outputs = attempt.staging.seal()
        attempt.publish()

    def undo(self, run_id: int, of: Attempt) -> None:
        attempt = self.lake.keeping(run_id, 2)
        run = replace(attempt.launch.runs[0], restores=of.run.id)
        attempt = Attempt(attempt.sessions, replace(attempt.launch, runs=(run,)))
        ((output,),) = of.outputs.values()
        undone = TableOutput.of(output)
        assert undone is not None
        attempt.staging.tables.restore("restore", attempt.spark, undone)
        attempt.outputs = attempt.staging.seal()
        attempt.publish()


def texts(rows: list[tuple[object, ...]]) -> list[str]:
    return sorted(map(str, rows))


# Each key with a data source and with a SerDe, and each storage.
CELLS = sorted({*((key, of) for key in KEYS for of in (STORAGE[0], STORAGE[6])), *(("text", of) for of in STORAGE)})


@pytest.mark.long
@pytest.mark.parametrize(("number", "key", "storage"), [(number, *each) for number, each in enumerate(CELLS)])
def test_an_interval_is_replaced_and_restored(
    metastore: str, tmp_path: Path, number: int, key: str, storage: str
) -> None:
    location = str(tmp_path / "a folder's") if number % 2 else ""
    columns = f"{KEYS[key][0]}, Country string"
    with HiveLake(metastore, storage, columns, location.replace("'", "\\'"), "note string") as lake:
        layout = Layout(lake, key)
        neighbors = [each for each in layout.before if each not in layout.before[A_DAY : 2 * A_DAY]]
        attempt = lake.keeping(1, 2)
        first, last = moments(2)
        # A country and an hour that were there, one that was not, and the others without rows.
        after = [layout.row("after", first, COUNTRIES[1]), layout.row("after", last, "new")]
        layout.publish(attempt, after)
        assert layout.content() == texts([*neighbors, *after])
        layout.undo(2, of=attempt)
        assert layout.content() == texts(layout.before)
        gone = [name for name in lake.partitions() if "Country=new" in name or "country=new" in name]
        assert gone == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("by", "more", "message"),
    [
        ("dt timestamp", (), "is partitioned by the timestamp 'dt', whose names depend on the session's clock"),
        ("n int", (), "has no column 'dt'"),
        ("dt string", ("SET TBLPROPERTIES ('skip.header.line.count'='1')",), "has skip.header.line.count=1"),
        (
            "dt string",
            ("ADD PARTITION (dt='2013-01-02')", "SET SERDEPROPERTIES ('field.delim'='|')"),
            "the files of partition dt=2013-01-02 of .* are read in another way than those of new partitions",
        ),
    ],
)
def test_what_cannot_be_published_by_location_is_refused(
    metastore: str, by: str, more: tuple[str, ...], message: str
) -> None:
    with HiveLake(metastore, "STORED AS TEXTFILE", by, columns="note string") as lake:
        for each in more:
            lake.spark.sql(f"ALTER TABLE {lake.table} {each}")
        attempt = lake.keeping(1, 2)
        rows = lake.spark.sql("SELECT 'a' AS note, '2013-01-02' AS dt")
        with pytest.raises(CannotStage, match=message):
            attempt.staging.tables.stage("a", attempt.spark, rows, lake.table, "dt")
        assert lake.staged() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("by", "folder", "key", "values"),
    [
        ("dt date", "dt=2013-1-2", "date", "DATE'2013-01-02' AS dt"),
        ("year int, month int, day int", "year=2013/month=01/day=02", "integers", "2013 year, 1 month, 2 day"),
    ],
)
def test_partitions_of_names_that_spark_does_not_write_are_refused(
    metastore: str, tmp_path: Path, by: str, folder: str, key: str, values: str
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    with HiveLake(metastore, "STORED AS PARQUET", by, str(tmp_path), "note string") as lake:
        lake.spark.sql(f"MSCK REPAIR TABLE {lake.table}")
        attempt = lake.keeping(1, 2)
        rows = lake.spark.sql(f"SELECT 'a' AS note, {values}")
        with pytest.raises(CannotStage, match=rf"has a partition {folder} whose name Spark does not write"):
            attempt.staging.tables.stage("a", attempt.spark, rows, lake.table, KEYS[key][1])


@pytest.mark.long
def test_the_days_of_a_range_are_published_together(metastore: str) -> None:
    with HiveLake(metastore, "STORED AS PARQUET", "dt string, Country string", columns="note string") as lake:
        layout = Layout(lake, "text")
        attempt = lake.attempt(run_id=1, day=1, runs=2)
        attempt.launch = replace(attempt.launch, keep_replaced_days=3)
        rows = [layout.row(f"after {day}", moments(day)[0], "NL") for day in (1, 2)]
        layout.publish(attempt, rows)
        assert layout.content() == texts([*rows, *layout.before[2 * A_DAY :]])
