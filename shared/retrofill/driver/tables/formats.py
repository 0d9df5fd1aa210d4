"""The formats of tables that can be published into."""

from __future__ import annotations

from typing import Any, Mapping

from retrofill.driver.tables.delta import Delta
from retrofill.driver.tables.iceberg import Iceberg
from retrofill.driver.tables.protocol import Format

# By the name that Spark has for the format.
FORMATS: Mapping[str, type[Format]] = {"iceberg": Iceberg, "delta": Delta}


def provider_of(session: Any, table: str) -> str:
    """The format of a table, in lower case."""
    from pyspark.sql.functions import col

    rows = session.sql(f"DESCRIBE TABLE EXTENDED {table}").where(col("col_name") == "Provider").collect()
    return str(rows[0].data_type).lower() if rows else "unknown"
