"""Replaces the totals of a day in an Iceberg table of which it knows the name: only its partition, by dynamic overwrite."""

import argparse

from pyspark.sql import SparkSession

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--day", required=True)
parser.add_argument("--sales", required=True)
parser.add_argument("--database", required=True)
given = parser.parse_args()
spark = SparkSession.builder.config("spark.sql.sources.partitionOverwriteMode", "dynamic").getOrCreate()
spark.read.json(given.sales).createOrReplaceTempView("sales")
spark.sql(
    f"""
    INSERT OVERWRITE {given.database}.day_totals
    SELECT CAST(day AS DATE) AS day, shop, SUM(amount) AS amount
    FROM sales WHERE day = '{given.day}' GROUP BY day, shop
    """
)
