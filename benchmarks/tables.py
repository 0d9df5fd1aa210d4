"""A staged day of a table published, undone, and a month of days in one range, next to plain writes of the same rows."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.lake import FORMATS, Attempt, Lake, server

from benchmarks.core import Benchmark, Figure, figure, ratios
from retrofill.protocol.table_output import TableOutput

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
RANGES = tuple(map(int, os.environ.get("BENCH_DAYS", "30,365").split(",")))
HOURS, HOURS_AT_ONCE, MOST_METADATA = 8760, 400, 2.0
REPEATS = int(os.environ.get("BENCH_REPEATS", "5"))
AT_MOST = 1.5
UNDO_AT_MOST = 1.0
# The default of RETROFILL_KEEP_REPLACED_DAYS.
KEEP_DAYS = 7
FIRST, HOUR = datetime(2013, 1, 1, tzinfo=UTC), timedelta(hours=1)
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
    """An attempt at days in UTC. ``restores``: the run that the first one undoes; the others follow."""
    attempt = lake.attempt(run_id=run_id, runs=runs)
    made = attempt.launch
    given = tuple(
        replace(
            run,
            restores=None if restores is None else restores + n,
            interval_start=FIRST + n * timedelta(days=1),
            interval_end=FIRST + (n + 1) * timedelta(days=1),
        )
        for n, run in enumerate(made.runs)
    )
    pipeline = replace(made.pipeline, timezone="UTC")
    # An undo restores what was there before its whole backfill.
    backfill = f"b{run_id}"
    return Attempt(
        attempt.sessions,
        replace(made, runs=given, pipeline=pipeline, keep_replaced_days=KEEP_DAYS, backfill_id=backfill),
    )


def rows_of(lake: Lake, table: str) -> int:
    """How many rows its readers see. Publishers have sessions of their own, and this one may know it as it was."""
    lake.spark.sql(f"REFRESH TABLE {table}").collect()
    return int(lake.spark.table(table).count())


def staged(lake: Lake, attempt: Attempt, source: str) -> Attempt:
    attempt.staging.tables.stage("a", attempt.spark, lake.spark.table(source), lake.table, "day")
    attempt.outputs = attempt.staging.seal()
    return attempt


def undo(lake: Lake, run_id: int, undoes: int, runs: int = 1) -> None:
    attempt = attempt_of(lake, run_id, runs, restores=undoes)
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
        # At first, there was nothing to be restored.
        assert rows_of(lake, lake.table) == (ROWS if n else 0)
        plain.append(seconds(lambda: lake.spark.table(source).writeTo(lake.table).overwrite(expr(DAY))))
    assert rows_of(lake, lake.table) == ROWS
    return [
        *compared("publish a staged day / overwrite a day", publishing, plain),
        *compared("undo a day / stage and publish a day", undoing, writing, UNDO_AT_MOST),
    ]


def of_a_range(lake: Lake, source: str, days: int) -> list[Figure]:
    """All days staged at once, published by one commit and undone, and the same rows written in one job."""
    ours: list[float] = []
    bare: list[float] = []
    undoing: list[float] = []

    def write() -> Any:
        return lake.spark.table(source).repartition("day").writeTo(lake.table).overwritePartitions()

    for n in range(REPEATS):
        run_id = 10_000 * (n + 1)
        ours.append(seconds(lambda run_id=run_id: staged(lake, attempt_of(lake, run_id, days), source).publish()))  # type: ignore[misc]
        undoing.append(seconds(lambda run_id=run_id: undo(lake, run_id + 5_000, run_id, days)))  # type: ignore[misc]
        assert rows_of(lake, lake.table) == (ROWS if n else 0)
        bare.append(seconds(write))
    assert rows_of(lake, lake.table) == ROWS
    return [
        *compared(f"{days} days in a range / {days} days in one job", ours, bare),
        *compared(f"undo of {days} days / {days} days in a range", undoing, ours, UNDO_AT_MOST)[::2],
    ]


def of_hours(lake: Lake) -> list[Figure]:
    """A year of hours in ranges: how large the table's metadata becomes."""
    table = lake.create(f"{lake.table}_hours", "at timestamp, n bigint", "PARTITIONED BY (hours(at))")
    for first in range(0, HOURS, HOURS_AT_ONCE):
        hours = min(HOURS_AT_ONCE, HOURS - first)
        attempt = attempt_of(lake, first + 1, hours)
        runs = tuple(
            replace(run, interval_start=FIRST + (first + n) * HOUR, interval_end=FIRST + (first + n + 1) * HOUR)
            for n, run in enumerate(attempt.launch.runs)
        )
        attempt = Attempt(attempt.sessions, replace(attempt.launch, runs=runs))
        start = f"TIMESTAMP '{runs[0].interval_start:%Y-%m-%d %H:%M:%S} UTC'"
        rows = attempt.spark.sql(f"SELECT timestampadd(HOUR, id, {start}) AS at, id AS n FROM range({hours})")
        attempt.staging.tables.stage("a", attempt.spark, rows, table, "at")
        attempt.outputs = attempt.staging.seal()
        attempt.publish()
    assert rows_of(lake, table) == HOURS
    (last,) = lake.spark.sql(f"SELECT file FROM {table}.metadata_log_entries ORDER BY timestamp DESC LIMIT 1").collect()
    size = Path(last.file.removeprefix("file:")).stat().st_size / 1e6
    return [figure(f"metadata of {HOURS:,} hours in ranges of {HOURS_AT_ONCE}", "MB", [size], at_most=MOST_METADATA)]


def run() -> Sequence[Figure]:
    figures = []
    # As in a driver that uses Connect.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    with server() as remote, tempfile.TemporaryDirectory() as folder:
        for format in FORMATS:
            for days in (1, *RANGES):
                with Lake(remote, format, Path(folder)) as lake:
                    source = source_of(lake, days)
                    # Dynamic overwrites replace only the partitions that have new rows, in both formats.
                    lake.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
                    found = of_a_day(lake, source) if days == 1 else of_a_range(lake, source, days)
                    figures += [replace(each, name=f"{format}: {each.name}") for each in found]
                    lake.spark.sql(f"DROP TABLE {source}").collect()
        with Lake(remote, "iceberg", Path(folder)) as lake:
            figures += of_hours(lake)
    return figures


BENCHMARK = Benchmark(
    "tables",
    f"{ROWS:,} rows of a day, and of {RANGES} days in one range, staged, published and undone in Iceberg and Delta tables that "
    "are partitioned by day",
    "plain overwrites of the same rows in the same table, in the same Spark",
    f"at most {AT_MOST} times the plain overwrite, and the undo at most the time of the write",
    run,
)
