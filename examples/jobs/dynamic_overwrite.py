"""Sales by hour: overwrites the partitions of a day below a root, as a Hive table has them."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", required=True)
    parser.add_argument("--sales", required=True)
    parser.add_argument("--root", required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.appName("sales by hour").getOrCreate()
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    sales = spark.read.json(given.sales).where(f.col("day") == given.day)
    by_hour = sales.groupBy(f.col("day").alias("dt"), "hour", "shop").agg(f.sum("amount").alias("amount"))
    by_hour.write.mode("overwrite").partitionBy("dt", "hour").parquet(given.root)


main()
