"""Loads a day's orders from a table of a database."""

import argparse

from pyspark.sql import SparkSession

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--day", required=True)
parser.add_argument("--url", required=True)
parser.add_argument("--user", required=True)
parser.add_argument("--password", required=True)
parser.add_argument("--out", required=True)
given = parser.parse_args()
spark = SparkSession.builder.appName("orders from a database").getOrCreate()
orders = (
    spark.read.format("jdbc")
    .option("url", given.url)
    .option("driver", "org.postgresql.Driver")
    .option("user", given.user)
    .option("password", given.password)
    .option("query", f"SELECT shop, amount FROM orders WHERE day = DATE '{given.day}'")
    .load()
)
orders.write.mode("overwrite").parquet(given.out)
