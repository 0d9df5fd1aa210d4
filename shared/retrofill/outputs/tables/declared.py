"""The key that a pipeline declares for a table, as ``run.stage_table`` gets it, with the types of the table's columns."""

from __future__ import annotations

from typing import Any, Mapping

from retrofill.outputs.cannot_stage import NoSuchColumn
from retrofill.outputs.tables.key import CLOCKS, INTEGERS, Key, KeyColumn, plain
from retrofill.protocol.interval import zone_of
from retrofill.protocol.names_of_time import (
    DAY_FORMAT,
    NotAFormat,
    directives,
    refuse_incomplete,
    refuse_unreadable,
)
from retrofill.sdk.tables import Declared


def key_of_table(declared: Declared, zone: str, schema: Any, table: str) -> Key:
    """The declared key of a table with this schema. Raises ``NoSuchColumn``."""
    formats = {declared: None} if isinstance(declared, str) else declared
    if not formats or not isinstance(formats, Mapping) or not all(isinstance(name, str) for name in formats):
        raise NoSuchColumn(f'name a column of {table}, or columns with formats, like column={{"dt": "%Y%m%d"}}')
    key = Key(tuple(_column(name, format, schema, table) for name, format in formats.items()), zone)
    if any(each.type in CLOCKS for each in key.columns) and len(key.columns) > 1:
        raise NoSuchColumn(f"one of {key.column} is a timestamp, which tells an interval alone: name only that one")
    if zone and key.type == "timestamp":
        raise NoSuchColumn(f"zone={zone!r}: column {key.column!r} is of type timestamp, which needs none")
    if zone and zone_of(zone) is None:
        raise NoSuchColumn(f"zone={zone!r}: this Python knows no such time zone")
    if key.columns[0].format:
        try:
            refuse_incomplete(key.directives)
        except NotAFormat as e:
            shown = ", ".join(f"{each.name!r}: {each.format!r}" for each in key.columns)
            raise NoSuchColumn(f"the formats {{{shown}}} {e}") from e
    return key


def _column(name: str, format: str | None, schema: Any, table: str) -> KeyColumn:
    found = next((field for field in schema if field.name.lower() == name.lower()), None)
    if found is None:
        raise NoSuchColumn(f"{table} has no column {name!r}: name the one that tells to which interval a row belongs")
    type = found.dataType.simpleString()
    if type.startswith(("char(", "varchar(")):
        type = "string"
    if type not in ("date", "string", *CLOCKS, *INTEGERS):
        raise NoSuchColumn(
            f"column {found.name!r} is of type {type}, which tells no interval: name one of type date, timestamp, string or integer"
        )
    if format is None:
        if type in INTEGERS:
            raise NoSuchColumn(
                f"column {found.name!r} is of type {type}, which tells no interval by itself: "
                f'say what its numbers are, like column={{"{found.name}": "%Y%m%d"}}'
            )
        return plain(found.name, type)
    return _formatted(found.name, type, format)


def _formatted(name: str, type: str, format: str) -> KeyColumn:
    if type in CLOCKS or (type == "date" and format != DAY_FORMAT):
        raise NoSuchColumn(f"column {name!r} is of type {type}, which has no format: use None instead of {format!r}")
    try:
        if not isinstance(format, str) or not directives(format):
            raise NotAFormat("has no directives, like %Y%m%d")
        refuse_unreadable(format, integer=type in INTEGERS)
    except NotAFormat as e:
        raise NoSuchColumn(f"the format {format!r} of column {name!r} {e}") from e
    return KeyColumn(name, type, format)
