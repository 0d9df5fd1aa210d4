"""Totals of a day in a table of Postgres, which cannot be staged: the database refuses what a late attempt writes.

The conf of a request names ``orders``, a directory with a CSV file for each day. The variable ``TOTALS_DSN`` of the pool
says which database. The driver's Python needs psycopg.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from retrofill import Pipeline

totals = Pipeline("totals_to_postgres", schedule="@daily", start="2024-01-01", retries=2, writes=["postgres:totals"])

TABLES = """
CREATE TABLE IF NOT EXISTS totals (day date, shop text, amount bigint, PRIMARY KEY (day, shop));
CREATE TABLE IF NOT EXISTS totals_loaded (day date PRIMARY KEY, run_id bigint, attempt integer)
"""
# Changes no row if a later attempt has written. Otherwise it locks the day until the commit.
FENCE = """
INSERT INTO totals_loaded AS loaded VALUES (%s, %s, %s)
ON CONFLICT (day) DO UPDATE SET run_id = excluded.run_id, attempt = excluded.attempt
WHERE (loaded.run_id, loaded.attempt) <= (excluded.run_id, excluded.attempt)
"""


class Overtaken(Exception):
    """A later attempt has written the day."""


def load(conn: Any, run: Any, rows: Sequence[tuple[str, int]]) -> None:
    """Replace the day's rows, in the transaction of ``conn``. Raises ``Overtaken``."""
    day = run.interval.start.date()
    if conn.execute(FENCE, (day, run.id, run.attempt)).rowcount == 0:
        raise Overtaken(f"a later attempt than {run.attempt} of run {run.id} has written {day}")
    conn.execute("DELETE FROM totals WHERE day = %s", (day,))
    with conn.cursor() as cursor:
        cursor.executemany("INSERT INTO totals VALUES (%s, %s, %s)", [(day, *row) for row in rows])


@totals.task
def write(run: Any) -> None:
    """Compute the totals, then write them in one transaction."""
    import psycopg

    orders = run.spark.read.csv(f"{run.conf['orders']}/{run.interval.start:%Y-%m-%d}.csv", header=True)
    found = orders.groupBy("shop").agg({"amount": "sum"}).collect()
    with psycopg.connect(os.environ["TOTALS_DSN"]) as conn:
        load(conn, run, [(row[0], int(row[1])) for row in found])
