"""Orders of a day by shop."""

import argparse
import sys

from pyspark.sql import SparkSession


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", required=True)
    parser.add_argument("--root", required=True)
    options = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    orders = spark.read.csv(options.orders, header=True, schema="shop string, amount bigint")
    if orders.isEmpty():
        sys.stderr.write(f"no orders in {options.orders}\n")
        return 3
    orders.groupBy("shop").sum("amount").withColumnRenamed("sum(amount)", "amount").write.mode("overwrite").parquet(
        options.root
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
