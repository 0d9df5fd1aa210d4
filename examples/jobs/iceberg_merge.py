"""Corrects the totals of a day in an Iceberg table by MERGE: shops that are not in the sales keep theirs."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", required=True)
    parser.add_argument("--sales", required=True)
    parser.add_argument("--table", required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.appName("merge totals").getOrCreate()
    spark.read.json(given.sales).createOrReplaceTempView("sales")
    spark.sql(
        f"""
        MERGE INTO {given.table} AS t
        USING (
            SELECT CAST(day AS DATE) AS day, shop, SUM(amount) AS amount
            FROM sales WHERE day = '{given.day}' GROUP BY day, shop
        ) AS s
        ON t.day = s.day AND t.shop = s.shop
        WHEN MATCHED THEN UPDATE SET amount = s.amount
        WHEN NOT MATCHED THEN INSERT *
        """
    )


main()
