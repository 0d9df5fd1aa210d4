"""Earlier states of a table, and comparing them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

from retrofill.errors import first_line
from retrofill.outputs.kept import NotKept
from retrofill.outputs.tables.group import Group
from retrofill.protocol.table_output import quoted


def as_of(session: Any, table: str, version: int | None) -> Any:
    """The whole table as it was at a version, empty for ``None``. Raises ``NotKept``."""
    from pyspark.errors import AnalysisException, IllegalArgumentException

    if version is None:
        return session.table(table).where("false")
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


def contents(rows: Any, singles: Sequence[Group]) -> list[str]:
    """Text for each group, the same for two states with the same rows of its intervals: one Spark job for all."""
    from pyspark.sql.functions import expr

    if not singles:
        return []
    whole = replace(singles[0], members=tuple(member for each in singles for member in each.members))
    whose = " ".join(f"WHEN {each.condition} THEN {number}" for number, each in enumerate(singles))
    hashed = rows.where(whole.condition).select(
        _hash(rows.schema).alias("hash"), expr(f"CASE {whose} END").alias("whose")
    )
    summed = hashed.groupBy("whose").agg(expr("count(*) AS number"), expr("sum(hash) AS total")).collect()
    found = {row.whose: f"{row.number} rows {row.total}" for row in summed}
    return [found.get(number, "0 rows") for number in range(len(singles))]


def _digest(rows: Any, condition: str) -> Any:
    """The number of rows and the sum of their hashes."""
    hashed = rows.where(condition).select(_hash(rows.schema).alias("hash"))
    return tuple(hashed.selectExpr("count(*)", "sum(hash)").collect()[0])


def _hash(schema: Any) -> Any:
    """The hash of a row, as a number that can be summed up."""
    from pyspark.sql.functions import col, struct, to_json, xxhash64

    columns = []
    for field in sorted(schema, key=lambda each: each.name.lower()):
        plain = not any(each in field.dataType.simpleString() for each in ("map<", "variant"))
        column = col(quoted(field.name))
        columns.append(column if plain else to_json(struct(column)))
        if field.nullable:
            # The hash passes over nulls.
            columns.append(column.isNull())
    return xxhash64(*columns).cast("decimal(38,0)")
