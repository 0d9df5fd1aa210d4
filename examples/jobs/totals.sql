-- Totals of a day's sales by shop.
CREATE OR REPLACE TEMPORARY VIEW wanted AS SELECT * FROM IDENTIFIER(:sales) WHERE day = :first_day;

SELECT day, shop, SUM(amount) AS amount FROM wanted GROUP BY day, shop
