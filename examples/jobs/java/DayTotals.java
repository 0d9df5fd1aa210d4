package org.example.sales;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/** Writes the totals of a day's orders by shop. Its arguments are a CSV file and a directory. */
public final class DayTotals {
    public static void main(String[] args) {
        SparkSession spark = SparkSession.builder().appName("totals of a day").getOrCreate();
        Dataset<Row> orders = spark.read().option("header", true).schema("shop string, amount bigint").csv(args[0]);
        if (orders.isEmpty()) {
            throw new IllegalStateException("no orders in " + args[0]);
        }
        Totals.byShop(orders).write().mode("overwrite").parquet(args[1]);
        spark.stop();
    }
}
