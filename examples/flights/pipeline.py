"""A daily pipeline over flights from New York City in 2013: delays by carrier, joined with the weather.

The backfill's ``conf`` needs ``data``, the directory that ``prepare.py`` wrote. The tasks process a
range of days at once, and stage a directory for each, which replaces the published one as a whole. If
``conf`` names a ``table`` (Delta or Iceberg), they stage its rows instead.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from retrofill import Callback, Deadline, Pipeline, Reference

flights = Pipeline(
    "flights_daily",
    schedule="@daily",
    start="2013-01-01",
    end="2013-12-31",
    timezone="America/New_York",
    max_active_runs=4,
    batch_size=400,
    batch_mode="range",
    retries=2,
    retry_delay=timedelta(seconds=1),
    deadlines=[Deadline("slow_day", Reference.RUN_STARTED_AT, timedelta(minutes=10), callback="page_oncall")],
    on_run_failed=[Callback("page_oncall", kwargs={"text": "{digest.count} runs failed, the first: {error.message}"})],
    on_backfill_failed=["page_oncall"],
)


def delays_of_days(spark: Any, data: str, days: Sequence[str]) -> Any:
    """A row per day and carrier: flights, cancellations, mean delays and weather."""
    from pyspark.sql import functions as f

    by_carrier = (
        read_days(spark, f"{data}/flights", days)
        .groupBy("day", "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.sum(f.col("dep_time").isNull().cast("int")).alias("cancelled"),
            f.avg("dep_delay").alias("mean_dep_delay"),
            f.avg("arr_delay").alias("mean_arr_delay"),
        )
    )
    return by_carrier.join(weather_of_days(spark, data, days), how="left", on="day")


def write_days(figures: Any, to: str) -> None:
    """Write each day to a directory ``to``/day=…"""
    figures.repartition("day").write.mode("overwrite").partitionBy("day").parquet(to)


def weather_of_days(spark: Any, data: str, days: Sequence[str]) -> Any:
    """A row per day: mean temperature, precipitation and maximum wind. Days without observations are missing."""
    from pyspark.sql import functions as f

    # The record has gaps, including the last day of the year.
    observed = [day for day in days if Path(data, "weather", f"day={day}").exists()]
    rows = read_days(spark, f"{data}/weather", observed) if observed else spark.createDataFrame([], WEATHER)
    return rows.groupBy("day").agg(
        f.avg("temp").alias("mean_temp"), f.sum("precip").alias("precip"), f.max("wind_speed").alias("max_wind")
    )


def read_days(spark: Any, table: str, days: Sequence[str]) -> Any:
    """These partitions of a table, with the column ``day``."""
    return spark.read.option("basePath", table).parquet(*(f"{table}/day={day}" for day in days))


WEATHER = "day date, temp double, precip double, wind_speed double"


def check_days(spark: Any, data: str, days: Sequence[str], figures: Any) -> None:
    """Raise ``ValueError`` if the figures, as written, lost or duplicated a flight."""
    from pyspark.sql import functions as f

    counted = figures.groupBy("day").agg(
        f.sum("flights").alias("counted"), (f.count("*") - f.countDistinct("carrier")).alias("twice")
    )
    source = read_days(spark, f"{data}/flights", days).groupBy("day").count()
    wrong = source.join(counted, how="full", on="day").where(
        "counted IS NULL OR `count` IS NULL OR counted <> `count` OR twice > 0"
    )
    first = wrong.orderBy("day").first()
    if first is not None:
        raise ValueError(f"{first['day']}: {first['counted']} flights in the figures, {first['count']} in the source")


def days_of(run: Any) -> list[str]:
    """The days to process: one, or all of a range."""
    return [f"{interval.start:%Y-%m-%d}" for interval in run.intervals]


@flights.task
def delays(run: Any) -> None:
    """Compute and stage the figures of all days in one job, each day as an output of its own."""
    data, table = run.conf["data"], run.conf.get("table")
    figures = delays_of_days(run.spark, data, days_of(run))
    if table:
        run.stage_table(figures, table, column="day")
    else:
        write_days(figures, run.stage_partitions(f"{data}/delays", "day={interval.start:%Y-%m-%d}"))


@flights.task(after=delays)
def quality(run: Any) -> None:
    """Validate the staged figures before they are published."""
    data, table = run.conf["data"], run.conf.get("table")
    figures = run.staged_table(table) if table else run.spark.read.parquet(run.staged(f"{data}/delays"))
    check_days(run.spark, data, days_of(run), figures)


late = Pipeline(
    "flights_late_report",
    schedule="@daily",
    start="2013-01-01",
    end="2013-12-31",
    timezone="America/New_York",
    deadlines=[Deadline("too_late", Reference.RUN_STARTED_AT, timedelta(seconds=2), callback="page_oncall")],
)


@late.task
def report(run: Any) -> None:
    """Miss the deadline on purpose, to demonstrate the callback."""
    threading.Event().wait(float(run.conf.get("seconds", 4)))
