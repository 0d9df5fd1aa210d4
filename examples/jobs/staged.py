"""Scripts that know nothing of Retrofill, and how each gets the place to write to: a root of partitions, or a table.

``conf``: ``sales`` are files of JSON, ``out`` is a directory, and ``lake`` the name of an Iceberg catalog, where the table
``shop.sales`` has the sales for the file of SQL.
"""

from __future__ import annotations

from retrofill import Pipeline, Table

DAY = ["--day", "{interval.start:%Y-%m-%d}", "--sales", "{conf[sales]}"]


def daily(name: str) -> Pipeline:
    return Pipeline(name, schedule="@daily", start="2026-01-01", max_active_runs=3)


by_hour = daily("sales_by_hour")
PARTITION = "dt={interval.each:%Y-%m-%d}/hour={interval.each:%H}"
by_hour.submit(
    "write", "dynamic_overwrite.py", args=[*DAY, "--root", "{stage_partitions:{conf[out]}/by_hour, " + PARTITION + "}"]
)

merged = daily("totals_merged")
TOTALS = "{conf[lake]}.shop.totals"
# A MERGE keeps the rows of the day that it does not match, so it must find them.
merged.submit(
    "merge",
    "iceberg_merge.py",
    args=[*DAY, "--table", f"{{stage_table:{TOTALS}}}"],
    tables=[Table(TOTALS, "day", with_rows=True)],
)

# It names its table itself, which has write.wap.enabled=true.
named = daily("totals_by_name")
named.submit(
    "overwrite",
    "iceberg_by_name.py",
    args=[*DAY, "--database", "{conf[lake]}.shop"],
    tables=[Table("{conf[lake]}.shop.day_totals", "day", redirected=True)],
)

replaced = daily("totals_replaced")
REPLACED = "delta.`{conf[out]}/totals`"
replaced.submit(
    "replace",
    "delta_replace_where.py",
    args=[*DAY, "--table", f"{{stage_table:{REPLACED}}}"],
    tables=[Table(REPLACED, "day")],
)

totals = daily("totals_by_sql")
totals.sql(
    "totals",
    "totals.sql",
    parameters={"sales": "{conf[lake]}.shop.sales"},
    into=Table("{conf[lake]}.shop.sql_totals", "day"),
)

ranks = daily("ranks_upserted")
RANKS = "delta.`{conf[out]}/ranks`"
ranks.submit(
    "rank",
    "upsert_in_pandas.py",
    args=[*DAY, "--table", f"{{stage_table:{RANKS}}}"],
    tables=[Table(RANKS, "day", with_rows=True)],
)
