"""Values that a table requires within structs, arrays and maps."""

from __future__ import annotations

from typing import Any, Iterator

from retrofill.outputs.cannot_stage import DoesNotFit
from retrofill.protocol.table_output import identifier


def nullable(type: Any) -> Any:
    """The type, with nulls wherever it can have some."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(type, StructType):
        return StructType([StructField(each.name, nullable(each.dataType)) for each in type])
    if isinstance(type, ArrayType):
        return ArrayType(nullable(type.elementType))
    if isinstance(type, MapType):
        return MapType(nullable(type.keyType), nullable(type.valueType))
    return type


def refuse_nulls(rows: Any, schema: Any, table: str) -> None:
    """Raise ``DoesNotFit`` if a row has none of a value that the table requires within another one."""
    found = [each for field in schema for each in _missing(identifier(field.name), field.name, field.dataType)]
    if not found:
        return
    cases = " ".join(f"WHEN {condition} THEN {number}" for number, (_, condition) in enumerate(found))
    bad = rows.selectExpr(f"CASE {cases} END AS missing").where("missing IS NOT NULL").limit(1).collect()
    if bad:
        raise DoesNotFit(f"a row for {table} has no {found[bad[0].missing][0]}, which the table requires")


def _missing(value: str, name: str, type: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """The names of what is required within a value, and the conditions that it is missing.

    ``value``: in SQL, within as many functions as ``depth`` says.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(type, StructType):
        for field in type:
            within, label = f"{value}.{identifier(field.name)}", f"{name}.{field.name}"
            if not field.nullable:
                yield label, f"{value} IS NOT NULL AND {within} IS NULL"
            yield from _missing(within, label, field.dataType, depth)
    elif isinstance(type, ArrayType):
        yield from _of_elements(value, f"{name}.element", type.elementType, type.containsNull, depth)
    elif isinstance(type, MapType):
        yield from _of_elements(f"map_values({value})", f"{name}.value", type.valueType, type.valueContainsNull, depth)
        yield from _of_elements(f"map_keys({value})", f"{name}.key", type.keyType, True, depth)


def _of_elements(array: str, name: str, type: Any, may_be_null: bool, depth: int) -> Iterator[tuple[str, str]]:
    each = f"each{depth}"
    if not may_be_null:
        yield name, f"exists({array}, {each} -> {each} IS NULL)"
    for label, condition in _missing(each, name, type, depth + 1):
        yield label, f"exists({array}, {each} -> {condition})"
