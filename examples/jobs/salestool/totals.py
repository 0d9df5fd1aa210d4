"""What the command line does."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def write_totals(orders: str, out: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.csv(orders, header=True, schema="shop string, amount bigint")
    rows.agg(f.sum("amount").alias("amount"), f.count("*").alias("orders")).write.mode("overwrite").parquet(out)
