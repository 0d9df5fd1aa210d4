"""Where the demo's figures go: Parquet directories, or a table (``make demo TABLE=iceberg``)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

CATALOG = "flights"
COLUMNS = (
    "day date, carrier string, flights bigint, cancelled bigint, mean_dep_delay double, mean_arr_delay double, "
    "mean_temp double, precip double, max_wind double"
)


class Output(Protocol):
    """One way to store the figures."""

    conf: Mapping[str, str]
    """Of a backfill that writes there."""

    def prepare_spark(self) -> None:
        """Set what the stack's Spark needs, in the environment."""

    def create(self, spark: Any) -> None:
        """Make it ready to be written to."""

    def read(self, spark: Any, days: Sequence[str]) -> pd.DataFrame:
        """The published figures of these days."""

    def write_bare(self, spark: Any, figures: Any, days: Sequence[str]) -> Any:
        """Write figures without Retrofill, elsewhere; returns them as written."""


class Folder:
    """A directory of Parquet per day."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.conf = {"data": str(data)}

    def prepare_spark(self) -> None:
        """Spark writes Parquet."""

    def create(self, spark: Any) -> None:
        """It is created when it is written."""

    def read(self, spark: Any, days: Sequence[str]) -> pd.DataFrame:  # noqa: ARG002 - pandas reads it
        return read_folder(self._data / "delays", days)

    def write_bare(self, spark: Any, figures: Any, days: Sequence[str]) -> Any:
        from pipeline import write_days

        to = f"{self._data}/bare/{days[0]}"
        write_days(figures, to)
        return spark.read.parquet(to)


class SparkTable:
    """An Iceberg or Delta table, partitioned by day. It outlives the stack, like the directories."""

    def __init__(self, data: Path, format: str) -> None:
        self._format = format
        self._warehouse = data / "iceberg"
        self._table, self._bare = (
            f"{CATALOG}.db.{name}" if format == "iceberg" else f"delta.`{data}/delta/{name}`"
            for name in ("delays", "bare")
        )
        self.conf = {"data": str(data), "table": self._table}

    def prepare_spark(self) -> None:
        catalog = {
            f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            f"spark.sql.catalog.{CATALOG}.type": "hadoop",
            f"spark.sql.catalog.{CATALOG}.warehouse": str(self._warehouse),
        }
        given = json.loads(os.environ.get("RETROFILL_SPARK_CONF", "{}"))
        more = catalog if self._format == "iceberg" else {}
        os.environ["RETROFILL_SPARK_CONF"] = json.dumps({**given, **more})
        os.environ["RETROFILL_SPARK_TABLES"] = json.dumps([self._format])

    def create(self, spark: Any) -> None:
        if self._format == "iceberg":
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.db").collect()
        for table in (self._table, self._bare):
            made = f"CREATE TABLE IF NOT EXISTS {table} ({COLUMNS}) USING {self._format} PARTITIONED BY (day)"
            spark.sql(made).collect()

    def read(self, spark: Any, days: Sequence[str]) -> pd.DataFrame:
        if self._format == "iceberg":
            # A session's catalog keeps what it has read of a table for half a minute.
            spark.sql(f"REFRESH TABLE {self._table}").collect()
        found: pd.DataFrame = self._of_days(spark, self._table, days).toPandas()
        return found

    def write_bare(self, spark: Any, figures: Any, days: Sequence[str]) -> Any:
        figures.writeTo(self._bare).overwritePartitions()
        return self._of_days(spark, self._bare, days)

    def _of_days(self, spark: Any, table: str, days: Sequence[str]) -> Any:
        from pyspark.sql.functions import col

        return spark.table(table).where(col("day").cast("string").isin(list(days)))


def read_folder(folder: Path, days: Sequence[str]) -> pd.DataFrame:
    """The figures in the directories of these days."""
    return pd.concat([pd.read_parquet(folder / f"day={day}").assign(day=day) for day in days], ignore_index=True)


def output_of(name: str, data: Path) -> Output:
    """``name``: folder, iceberg or delta."""
    return Folder(data) if name == "folder" else SparkTable(data, name)
