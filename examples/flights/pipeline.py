"""A daily pipeline over the flights that left New York City in 2013: delays by carrier, joined with the day's weather.

``conf`` of the backfill: ``data`` is the folder that ``prepare.py`` made. Each run stages its own day's folder, which replaces
the published one as a whole once the run's tasks have succeeded and its attempt was accepted.
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
    retries=2,
    retry_delay=timedelta(seconds=1),
    deadlines=[Deadline("slow_day", Reference.RUN_STARTED_AT, timedelta(minutes=10), callback="page_oncall")],
)


def delays_of_day(spark: Any, data: str, day: str, to: str) -> None:
    """Write flights, cancellations and mean delays of each carrier, with the day's weather, to the folder ``to``."""
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
    """One row: the day's mean temperature, precipitation and strongest wind; nulls on a day without observations."""
    from pyspark.sql import functions as f

    path = Path(data, "weather", f"day={day}")
    # The station's record has gaps, the last day of the year among them.
    observed = spark.read.parquet(str(path)) if path.exists() else spark.createDataFrame([], WEATHER)
    return observed.agg(
        f.avg("temp").alias("mean_temp"), f.sum("precip").alias("precip"), f.max("wind_speed").alias("max_wind")
    )


WEATHER = "temp double, precip double, wind_speed double"


def check_day(spark: Any, data: str, day: str, written: str) -> None:
    """Refuse a day whose figures, in the folder ``written``, lost or doubled a flight."""
    from pyspark.sql import functions as f

    figures = spark.read.parquet(written)
    counted = figures.agg(f.sum("flights"), f.count("*"), f.countDistinct("carrier")).first()
    source = spark.read.parquet(f"{data}/flights/day={day}").count()
    if counted[0] != source:
        raise ValueError(f"{day}: {counted[0]} flights in the figures, {source} in the source")
    if counted[1] != counted[2]:
        raise ValueError(f"{day}: a carrier has more than one row")


def output(data: Any, day: str) -> str:
    """The day's folder of the published table."""
    return f"{data}/delays/day={day}"


@flights.task
def delays(run: Any) -> None:
    """Compute the day's figures."""
    data, day = run.conf["data"], f"{run.interval.start:%Y-%m-%d}"
    delays_of_day(run.spark, data, day, to=run.stage(output(data, day)))


@flights.task(after=delays)
def quality(run: Any) -> None:
    """Check them, before anybody sees them."""
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
    """Take longer than the deadline allows, on purpose: what a slow report looks like to those on call."""
    threading.Event().wait(float(run.conf.get("seconds", 4)))
