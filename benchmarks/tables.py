"""A staged day of a table published, undone, and a month of days in one range, next to plain writes of the same rows."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.lake import FORMATS, Attempt, Lake, server

from benchmarks.core import Benchmark, Figure, figure, ratios
from retrofill.driver.tables.output import TableOutput

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
DAYS = int(os.environ.get("BENCH_DAYS", "30"))
REPEATS = int(os.environ.get("BENCH_REPEATS", "5"))
AT_MOST = 1.5
UNDO_AT_MOST = 1.0
# The default of RETROFILL_KEEP_REPLACED_DAYS.
KEEP_DAYS = 7
DAY = "day >= DATE '2013-01-01' AND day < DATE '2013-01-02'"


def seconds(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began


def source_of(lake: Lake, days: int) -> str:
    """A table with the rows of so many days, ``ROWS`` together."""
    source = lake.create(f"{lake.table}_source{days}")
    day = f"date_add(DATE '2013-01-01', CAST(id % {days} AS int))"
    rows = f"SELECT {day} AS day, id AS n, concat('row ', id * 7919 % {ROWS}) AS note FROM range({ROWS})"
    lake.spark.sql(f"INSERT INTO {source} {rows}").collect()
    return source


def attempt_of(lake: Lake, run_id: int, runs: int = 1, restores: int | None = None) -> Attempt:
    attempt = lake.attempt(run_id=run_id, runs=runs)
    given = tuple(replace(run, restores=restores) for run in attempt.launch.runs)
    return Attempt(attempt.sessions, replace(attempt.launch, runs=given, keep_replaced_days=KEEP_DAYS))


def staged(lake: Lake, attempt: Attempt, source: str) -> Attempt:
    attempt.staging.tables.stage("a", attempt.spark, lake.spark.table(source), lake.table, "day")
    attempt.outputs = attempt.staging.seal()
    return attempt


def undo(lake: Lake, run_id: int, undoes: int) -> None:
    attempt = attempt_of(lake, run_id, restores=undoes)
    undone = TableOutput(lake.table, "", "day", "date", lake.format)
    attempt.staging.tables.restore("restore", attempt.spark, undone)
    attempt.outputs = attempt.staging.seal()
    attempt.publish()


def compared(what: str, ours: list[float], plain: list[float], at_most: float | None = AT_MOST) -> list[Figure]:
    """``what``: the names of both, with a slash between. Without the first of each, which warms up."""
    figures = [figure(name, "s", values[1:]) for name, values in zip(what.split(" / "), (ours, plain), strict=True)]
    return [*figures, figure(what, "x", ratios(ours[1:], plain[1:]), at_most=at_most)]


def of_a_day(lake: Lake, source: str) -> list[Figure]:
    """Publications, undos and overwrites, alternating, after one of each to warm up."""
    from pyspark.sql.functions import expr

    publishing: list[float] = []
    writing: list[float] = []
    undoing: list[float] = []
    plain: list[float] = []
    for n in range(REPEATS + 1):
        run_id = 2 * n + 1
        began = time.monotonic()
        attempt = staged(lake, attempt_of(lake, run_id), source)
        publishing.append(seconds(attempt.publish))
        writing.append(time.monotonic() - began)
        undoing.append(seconds(lambda run_id=run_id: undo(lake, run_id + 1, run_id)))  # type: ignore[misc]
        plain.append(seconds(lambda: lake.spark.table(source).writeTo(lake.table).overwrite(expr(DAY))))
    assert lake.spark.table(lake.table).count() == ROWS
    return [
        *compared("publish a staged day / overwrite a day", publishing, plain),
        *compared("undo a day / stage and publish a day", undoing, writing, UNDO_AT_MOST),
    ]


def of_a_range(lake: Lake, source: str) -> list[Figure]:
    """All days staged at once and published one by one, the same rows written in one job, and in one job for each day."""
    from pyspark.sql.functions import expr

    ours: list[float] = []
    bare: list[float] = []
    each: list[float] = []

    def write() -> Any:
        return lake.spark.table(source).repartition("day").writeTo(lake.table).overwritePartitions()

    def write_each() -> None:
        for day in range(DAYS):
            rows = f"day = date_add(DATE '2013-01-01', {day})"
            lake.spark.table(source).where(rows).writeTo(lake.table).overwrite(expr(rows))

    for n in range(2):
        ours.append(seconds(lambda n=n: staged(lake, attempt_of(lake, 1000 * (n + 1), DAYS), source).publish()))  # type: ignore[misc]
        bare.append(seconds(write))
        each.append(seconds(write_each))
    assert lake.spark.table(lake.table).count() == ROWS
    return [
        *compared(f"{DAYS} days in a range / {DAYS} days in one job", ours, bare),
        *compared(f"{DAYS} days in a range / {DAYS} days in {DAYS} jobs", ours, each)[1:],
    ]


def run() -> Sequence[Figure]:
    figures = []
    # As in a driver that uses Connect.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    with server() as remote, tempfile.TemporaryDirectory() as folder:
        for format in FORMATS:
            for days, measure in ((1, of_a_day), (DAYS, of_a_range)):
                with Lake(remote, format, Path(folder)) as lake:
                    source = source_of(lake, days)
                    # Dynamic overwrites replace only the partitions that have new rows, in both formats.
                    lake.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
                    found = measure(lake, source)
                    figures += [replace(each, name=f"{format}: {each.name}") for each in found]
                    lake.spark.sql(f"DROP TABLE {source}").collect()
    return figures


BENCHMARK = Benchmark(
    "tables",
    f"{ROWS:,} rows of a day, and of {DAYS} days in one range, staged, published and undone in Iceberg and Delta tables that "
    "are partitioned by day",
    "plain overwrites of the same rows in the same table, in the same Spark",
    f"at most {AT_MOST} times the plain overwrite, and the undo at most the time of the write",
    run,
)
