"""Replaces the totals of a day in a Delta table by ``replaceWhere``."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", required=True)
    parser.add_argument("--sales", required=True)
    parser.add_argument("--table", required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.appName("replace totals").getOrCreate()
    sales = spark.read.json(given.sales).where(f.col("day") == given.day)
    totals = sales.groupBy(f.to_date("day").alias("day"), "shop").agg(f.sum("amount").alias("amount"))
    writer = totals.write.format("delta").mode("overwrite").option("replaceWhere", f"day = DATE '{given.day}'")
    writer.saveAsTable(given.table)


main()
