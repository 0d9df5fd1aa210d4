"""Ranks the shops of a day with pandas, and upserts the ranks into a Delta table."""

from __future__ import annotations

import argparse

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def ranked(sales: pd.DataFrame) -> pd.DataFrame:
    """The totals of a day's shops, the best one first."""
    totals = sales.groupby(["day", "shop"], as_index=False)["amount"].sum().sort_values(["amount", "shop"])
    totals["rank"] = range(len(totals), 0, -1)
    return totals


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", required=True)
    parser.add_argument("--sales", required=True)
    parser.add_argument("--table", required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.appName("rank shops").getOrCreate()
    sales = spark.read.json(given.sales).where(f.col("day") == given.day).withColumn("day", f.to_date("day"))
    of_day = sales.select("day", "shop", "amount").groupBy("day")
    ranks = of_day.applyInPandas(ranked, "day date, shop string, amount long, rank long")
    ranks.createOrReplaceTempView("ranks")
    spark.sql(
        f"""
        MERGE INTO {given.table} AS t USING ranks AS s ON t.day = s.day AND t.shop = s.shop
        WHEN MATCHED THEN UPDATE SET *
        WHEN NOT MATCHED THEN INSERT *
        """
    )


main()
