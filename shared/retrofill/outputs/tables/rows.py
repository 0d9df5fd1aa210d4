"""Checks that rows fit a table and belong to the interval."""

from __future__ import annotations

from typing import Any, Collection, Sequence

from retrofill.errors import first_line
from retrofill.outputs.cannot_stage import DoesNotFit, NoSuchColumn, OtherInterval
from retrofill.outputs.tables.key import Key
from retrofill.outputs.tables.required import nullable
from retrofill.protocol.interval import Interval
from retrofill.protocol.table_output import identifier

# Where Spark keeps a column's default, as text of SQL.
_DEFAULT = "CURRENT_DEFAULT"


def fitted(rows: Any, schema: Any, table: str, filled: Collection[str] = ()) -> Any:
    """The rows with the table's columns, in its order and types. Raises ``NoSuchColumn`` or ``DoesNotFit``.

    Columns with a default get it. ``filled``: those that the table itself fills, if the rows do not have them.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import expr
    from pyspark.sql.types import StructField, StructType

    have, want = ({name.lower(): name for name in names} for names in (rows.columns, schema.names))
    for name in have.keys() - want.keys():
        raise NoSuchColumn(f"{table} has no column {have[name]!r}: add it to the table, or drop it from the rows")
    lacking = [field for field in schema if field.name.lower() not in have]
    defaults = {field.name: expr(field.metadata[_DEFAULT]) for field in lacking if _DEFAULT in field.metadata}
    for field in lacking:
        if field.name not in defaults and field.name not in filled:
            raise DoesNotFit(
                f"the rows have no column {field.name!r} of {table}: add it, with null if nothing is known"
            )
    left_out = {field.name for field in lacking} - defaults.keys()
    wanted = [StructField(field.name, nullable(field.dataType)) for field in schema if field.name not in left_out]
    try:
        # Nulls are looked for in the rows themselves: most columns could have some, as far as Spark knows.
        ready = (rows.withColumns(defaults) if defaults else rows).to(StructType(wanted))
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
    nulls = " OR ".join(f"{identifier(name)} IS NULL" for name in required)
    bad = rows.where(f"NOT ({key.condition(intervals)}) OR {nulls}").limit(1).collect()
    if not bad:
        return
    (row,) = bad
    missing = next((name for name in required if row[name] is None), None)
    if missing is not None:
        raise DoesNotFit(f"a row for {table} has no {missing}: the table needs one, or its interval is unknown")
    has = ", ".join(f"{name} = {row[name]}" for name in columns)
    formats = "" if key.is_range else f", with {key.column} as {', '.join(each.format for each in key.columns)}"
    raise OtherInterval(
        f"a row for {table} has {has}, outside of the interval from {whole.start.isoformat()} to "
        f"{whole.end.isoformat()}: write only the interval's rows{formats}"
    )
