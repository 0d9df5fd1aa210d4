package org.example.sales;

import static org.apache.spark.sql.functions.sum;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;

final class Totals {
    static Dataset<Row> byShop(Dataset<Row> orders) {
        return orders.groupBy("shop").agg(sum("amount").as("amount"));
    }
}
