"""Loads a day's orders as the file ``job.json`` of its working directory says."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

job = json.loads(Path("job.json").read_text())
spark = SparkSession.builder.getOrCreate()
orders = spark.read.csv(job["orders"], header=True, schema="shop string, amount bigint")
shops = spark.createDataFrame(
    [line.split(",") for line in Path("shops.csv").read_text().split()], "shop string, city string"
)
orders.join(shops, "shop", "left").na.fill(job["defaults"]).write.mode("overwrite").parquet(job["target"]["path"])
