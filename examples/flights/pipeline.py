"""A daily pipeline over flights from New York City in 2013: delays by carrier, joined with the weather.

The backfill's ``conf`` needs ``data``, the directory that ``prepare.py`` wrote. Each run stages its
day's directory, which replaces the published one as a whole once the attempt is accepted.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

from retrofill import Deadline, Pipeline, Reference

flights = Pipeline(
    "flights_daily",
    schedule="@daily",
    start="2013-01-01",
    end="2013-12-31",
    timezone="America/New_York",
    max_active_runs=4,
    batch_size=30,
    retries=2,
    retry_delay=timedelta(seconds=1),
    deadlines=[Deadline("slow_day", Reference.RUN_STARTED_AT, timedelta(minutes=10), callback="page_oncall")],
)


def delays_of_day(spark: Any, data: str, day: str, to: str) -> None:
    """Write each carrier's flights, cancellations, mean delays and weather to the directory ``to``."""
    from pyspark.sql import functions as f

    by_carrier = (
        spark.read.parquet(f"{data}/flights/day={day}")
        .groupBy("carrier")
        .agg(
            f.count("*").alias("flights"),
            f.sum(f.col("dep_time").isNull().cast("int")).alias("cancelled"),
            f.avg("dep_delay").alias("mean_dep_delay"),
            f.avg("arr_delay").alias("mean_arr_delay"),
        )
    )
    by_carrier.join(weather_of_day(spark, data, day), how="left", on=f.lit(True)).coalesce(1).write.mode(
        "overwrite"
    ).parquet(to)


def weather_of_day(spark: Any, data: str, day: str) -> Any:
    """One row: mean temperature, precipitation and maximum wind; nulls if there are no observations."""
    from pyspark.sql import functions as f

    path = Path(data, "weather", f"day={day}")
    # The record has gaps, including the last day of the year.
    observed = spark.read.parquet(str(path)) if path.exists() else spark.createDataFrame([], WEATHER)
    return observed.agg(
        f.avg("temp").alias("mean_temp"), f.sum("precip").alias("precip"), f.max("wind_speed").alias("max_wind")
    )


WEATHER = "temp double, precip double, wind_speed double"


def check_day(spark: Any, data: str, day: str, written: str) -> None:
    """Raise ``ValueError`` if the output in ``written`` lost or duplicated a flight."""
    from pyspark.sql import functions as f

    figures = spark.read.parquet(written)
    counted = figures.agg(f.sum("flights"), f.count("*"), f.countDistinct("carrier")).first()
    source = spark.read.parquet(f"{data}/flights/day={day}").count()
    if counted[0] != source:
        raise ValueError(f"{day}: {counted[0]} flights in the figures, {source} in the source")
    if counted[1] != counted[2]:
        raise ValueError(f"{day}: a carrier has more than one row")


def output(data: Any, day: str) -> str:
    """The day's directory of the published table."""
    return f"{data}/delays/day={day}"


@flights.task
def delays(run: Any) -> None:
    """Compute and stage the day's figures."""
    data, day = run.conf["data"], f"{run.interval.start:%Y-%m-%d}"
    delays_of_day(run.spark, data, day, to=run.stage(output(data, day)))


@flights.task(after=delays)
def quality(run: Any) -> None:
    """Validate the staged figures before they are published."""
    data, day = run.conf["data"], f"{run.interval.start:%Y-%m-%d}"
    check_day(run.spark, data, day, written=run.staged(output(data, day)))


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
