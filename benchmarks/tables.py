"""Publishing a staged day of a table, next to a plain overwrite of the same rows in the same table."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.lake import FORMATS, Attempt, Lake, server

from benchmarks.core import Benchmark, Figure, figure, ratios

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
REPEATS = int(os.environ.get("BENCH_REPEATS", "5"))
AT_MOST = 1.5
DAY = "day >= DATE '2013-01-01' AND day < DATE '2013-01-02'"


def seconds(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began


def measured(lake: Lake) -> tuple[list[float], list[float]]:
    """Seconds of publications and of overwrites, alternating, after one of each to warm up."""
    from pyspark.sql.functions import expr

    source = lake.create(f"{lake.table}_source")
    day = f"SELECT DATE '2013-01-01' AS day, id AS n, concat('row ', id * 7919 % {ROWS}) AS note FROM range({ROWS})"
    lake.spark.sql(f"INSERT INTO {source} {day}").collect()

    def staged() -> Attempt:
        attempt = lake.attempt(run_id=len(ours) + 1)
        attempt.staging.tables.stage("a", attempt.spark, lake.spark.table(source), lake.table, "day")
        attempt.outputs = attempt.staging.seal()
        return attempt

    ours: list[float] = []
    plain: list[float] = []
    for _ in range(REPEATS + 1):
        ours.append(seconds(staged().publish))
        plain.append(seconds(lambda: lake.spark.table(source).writeTo(lake.table).overwrite(expr(DAY))))
    assert lake.spark.table(lake.table).count() == ROWS
    lake.spark.sql(f"DROP TABLE {source}").collect()
    return ours[1:], plain[1:]


def run() -> Sequence[Figure]:
    figures = []
    with server() as remote, tempfile.TemporaryDirectory() as folder:
        for format in FORMATS:
            with Lake(remote, format, Path(folder)) as lake:
                ours, plain = measured(lake)
            figures += [
                figure(f"{format}: publish a staged day", "s", ours),
                figure(f"{format}: overwrite a day", "s", plain),
                figure(f"{format}: publish / overwrite", "x", ratios(ours, plain), at_most=AT_MOST),
            ]
    return figures


BENCHMARK = Benchmark(
    "tables",
    f"a staged day of {ROWS:,} rows published in an Iceberg and a Delta table that are partitioned by day",
    "a plain overwrite of the same rows in the same table, in the same Spark",
    f"at most {AT_MOST} times the plain overwrite",
    run,
)
