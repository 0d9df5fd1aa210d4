"""Checks that rows fit a table and belong to the interval."""

from __future__ import annotations

from typing import Any, Sequence

from retrofill.driver.cannot_stage import DoesNotFit, NoSuchColumn, OtherInterval
from retrofill.driver.interval import Interval
from retrofill.driver.tables.key import Key
from retrofill.driver.tables.output import column_name
from retrofill.errors import first_line


def fitted(rows: Any, schema: Any, table: str) -> Any:
    """The rows with the table's columns, in its order and types. Raises ``NoSuchColumn`` or ``DoesNotFit``."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructField, StructType

    have, want = ({name.lower(): name for name in names} for names in (rows.columns, schema.names))
    for name in have.keys() - want.keys():
        raise NoSuchColumn(f"{table} has no column {have[name]!r}: add it to the table, or drop it from the rows")
    for name in want.keys() - have.keys():
        raise DoesNotFit(f"the rows have no column {want[name]!r} of {table}: add it, with null if nothing is known")
    try:
        # Nulls are looked for in the rows themselves: most columns could have some, as far as Spark knows.
        ready = rows.to(StructType([StructField(field.name, field.dataType) for field in schema]))
        # Spark Connect analyzes it only now; of ``ready`` itself, it takes the schema as given.
        ready.select("*").schema  # noqa: B018
    except AnalysisException as e:
        about = e.getMessageParameters() or {}
        if {"name", "type", "expectedType"} <= about.keys():
            column, type, expected = (about[name].strip('"`') for name in ("name", "type", "expectedType"))
            raise DoesNotFit(
                f"column {column!r} is {type} in the rows, but {expected} in {table}: cast it, so that nothing is lost unseen"
            ) from e
        raise DoesNotFit(f"the rows do not fit {table}: {first_line(e)}") from e
    return ready


def refuse_misplaced(
    rows: Any, schema: Any, key: Key, intervals: Sequence[Interval], whole: Interval, table: str
) -> None:
    """Raise ``OtherInterval``, or ``DoesNotFit`` if a required value is missing.

    ``whole``: from the first to the last of the intervals.
    """
    columns = [each.name for each in key.columns]
    required = list(dict.fromkeys([*columns, *(field.name for field in schema if not field.nullable)]))
    nulls = " OR ".join(f"{column_name(name)} IS NULL" for name in required)
    bad = rows.where(f"NOT ({key.condition(intervals)}) OR {nulls}").limit(1).collect()
    if not bad:
        return
    (row,) = bad
    missing = next((name for name in required if row[name] is None), None)
    if missing is not None:
        raise DoesNotFit(f"a row for {table} has no {missing}: the table needs one, or the interval cannot be told")
    has = ", ".join(f"{name} = {row[name]}" for name in columns)
    formats = "" if key.is_range else f", with {key.column} as {', '.join(each.format for each in key.columns)}"
    raise OtherInterval(
        f"a row for {table} has {has}, outside of the interval from {whole.start.isoformat()} to "
        f"{whole.end.isoformat()}: write only the interval's rows{formats}"
    )
