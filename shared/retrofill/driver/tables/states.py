"""Earlier states of a table, and comparing them."""

from __future__ import annotations

from typing import Any

from retrofill.driver.kept import NotKept
from retrofill.driver.tables.output import quoted
from retrofill.errors import first_line


def as_of(session: Any, table: str, version: int) -> Any:
    """The whole table as it was. Raises ``NotKept``."""
    from pyspark.errors import AnalysisException, IllegalArgumentException

    try:
        rows = session.sql(f"SELECT * FROM {table} VERSION AS OF {version}")
        # Spark Connect may look for it only now.
        rows.schema  # noqa: B018
    except (AnalysisException, IllegalArgumentException) as e:
        raise NotKept(f"version {version} of {table} cannot be restored: {first_line(e)}") from e
    return rows


def same_rows(one: Any, other: Any, condition: str) -> bool:
    """Whether two states of a table have the same rows that meet the condition, in any order."""
    return bool(_digest(aligned(one, other.schema), condition) == _digest(other, condition))


def aligned(rows: Any, schema: Any) -> Any:
    """Rows of an earlier state of a table with the columns that it has now: new ones are null, former ones left out."""
    from pyspark.sql.functions import col, lit

    have = {name.lower() for name in rows.columns}
    columns = (col(quoted(field.name)) if field.name.lower() in have else lit(None) for field in schema)
    return rows.select(*(each.cast(field.dataType).alias(field.name) for each, field in zip(columns, schema)))


def _digest(rows: Any, condition: str) -> Any:
    """The number of rows and the sum of their hashes."""
    from pyspark.sql.functions import col, struct, to_json, xxhash64

    columns = []
    for field in sorted(rows.schema, key=lambda each: each.name.lower()):
        plain = not any(each in field.dataType.simpleString() for each in ("map<", "variant"))
        column = col(quoted(field.name))
        columns.append(column if plain else to_json(struct(column)))
        if field.nullable:
            # The hash passes over nulls.
            columns.append(column.isNull())
    hashed = rows.where(condition).select(xxhash64(*columns).cast("decimal(38,0)").alias("hash"))
    return tuple(hashed.selectExpr("count(*)", "sum(hash)").collect()[0])
