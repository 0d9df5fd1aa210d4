"""The key of a table: the columns that tell to which interval a row belongs, and the condition in SQL for its rows.

A timestamp is compared with the interval's ends. Any other column names a day, an hour or another unit of time, and a row
is the interval's if it has the name of one of its units. Names are never compared by order: as text, ``20241231`` comes
before ``2025-01-01``, and ``2022-11`` before ``2022-11-01``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from json import dumps, loads
from typing import Any, Iterable, Mapping, Sequence, Tuple, Union

from retrofill.outputs.cannot_stage import NoSuchColumn
from retrofill.protocol import names_of_time as names
from retrofill.protocol.launch import Interval, zone_of
from retrofill.protocol.names_of_time import DAY_FORMAT, NotAFormat, directives, refuse_incomplete, refuse_unreadable
from retrofill.protocol.table_output import TableOutput, identifier
from retrofill.sdk.texts import Declared

# Iceberg does not evaluate a longer IN.
MAX_IN = 200
# The largest value, and how a literal ends.
INTEGERS = {
    "tinyint": (2**7 - 1, "Y"),
    "smallint": (2**15 - 1, "S"),
    "int": (2**31 - 1, ""),
    "bigint": (2**63 - 1, "L"),
}
CLOCKS = ("timestamp", "timestamp_ntz")

Value = Union[str, int]
Values = Tuple[Value, ...]


@dataclass(frozen=True)
class KeyColumn:
    """``type``: in SQL. ``format``: how it names a unit of time; empty for a timestamp, with or without time zone."""

    name: str
    type: str
    format: str

    def value(self, moment: datetime) -> Value:
        """What it has in a row of this moment, which is in the key's time zone."""
        name = names.written(self.format, moment)
        return int(name) if self.type in INTEGERS else name

    def literal(self, value: Value) -> str:
        """A value in SQL."""
        if self.type in INTEGERS:
            return f"{value}{INTEGERS[self.type][1]}"
        return f"DATE '{value}'" if self.type == "date" else f"'{value}'"


@dataclass(frozen=True)
class Key:
    """``zone``: the time zone of the names, if it is not the pipeline's. ``key_of_table`` makes it."""

    columns: tuple[KeyColumn, ...]
    zone: str = ""

    @classmethod
    def of(cls, output: TableOutput) -> Key:
        """That an output was staged with."""
        if not output.formats:
            return cls((plain(output.column, output.type),))
        given = loads(output.formats)
        return cls(tuple(KeyColumn(*each) for each in given["columns"]), given["zone"])

    @property
    def formats(self) -> str:
        """The whole key as text; empty if the name and type of its only column say everything."""
        if self == Key((plain(self.column, self.type),)):
            return ""
        columns = [[each.name, each.type, each.format] for each in self.columns]
        return dumps({"columns": columns, "zone": self.zone})

    @property
    def column(self) -> str:
        """The names of its columns."""
        return ", ".join(each.name for each in self.columns)

    @property
    def type(self) -> str:
        return ", ".join(each.type for each in self.columns)

    @property
    def declared(self) -> dict[str, str | None]:
        """As a pipeline declares it."""
        return {each.name: each.format or None for each in self.columns}

    @property
    def is_range(self) -> bool:
        """Whether an interval's rows are between two values of the only column."""
        return self.type in ("date", *CLOCKS)

    @property
    def directives(self) -> set[str]:
        return {directive for each in self.columns for directive in names.directives(each.format)}

    @property
    def seconds(self) -> int:
        """Of the unit that it names; 0 for days or longer ones."""
        return names.seconds_of(self.directives)

    def condition(self, intervals: Sequence[Interval]) -> str:
        """The condition for the rows of these intervals, each of which ``refuse_ambiguous`` has let pass."""
        first = self.columns[0]
        if first.type == "timestamp":
            moments = ((_utc(each.start), _utc(each.end)) for each in intervals)
            return _within(first, "TIMESTAMP '{} UTC'", moments)
        if first.type == "timestamp_ntz":
            clocks = ((_clock(each.start), _clock(each.end)) for each in map(self.local, intervals))
            return _within(first, "TIMESTAMP_NTZ '{}'", clocks)
        values = list(dict.fromkeys(value for each in intervals for value in self.values(each)))
        if self.type == "date":
            days = (date.fromisoformat(str(day)) for (day,) in values)
            return _within(first, "DATE '{}'", ((day, day + timedelta(days=1)) for day in days))
        return _equal(self.columns, values)

    def values(self, interval: Interval) -> list[Values]:
        """What the columns have in the interval's rows, in order, unless that is a timestamp."""
        local = self.local(interval)
        return list(dict.fromkeys(map(self.value, names.moments(local.start, local.end, self.seconds))))

    def value(self, moment: datetime) -> Values:
        return tuple(each.value(moment) for each in self.columns)

    def local(self, interval: Interval) -> Interval:
        """In the key's time zone. Without data about the pipeline's, what clocks show at both ends, as if it were UTC.

        Raises ``NoSuchColumn``.
        """
        zone = zone_of(self.zone) if self.zone else None
        if zone is not None:
            return Interval(interval.start.astimezone(zone), interval.end.astimezone(zone))
        if self.zone or (names.OFFSET in self.directives and not knows_zone(interval)):
            raise NoSuchColumn(f"this Python has no data about the time zone {self.zone or 'of the pipeline'}")
        if knows_zone(interval):
            return interval
        return Interval(*(each.replace(tzinfo=timezone.utc) for each in (interval.start, interval.end)))


def plain(name: str, type: str) -> KeyColumn:
    """A column of whose format nothing was said: text is that of a date."""
    return KeyColumn(name, type, "" if type in CLOCKS else DAY_FORMAT)


def knows_zone(interval: Interval) -> bool:
    """Whether the interval is in a time zone, not only at the offsets that it has at both ends."""
    return not isinstance(interval.start.tzinfo, timezone) or interval.start.tzinfo is timezone.utc


def _utc(moment: datetime) -> datetime:
    return _clock(moment.astimezone(timezone.utc))


def _clock(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)


def _within(column: KeyColumn, literal: str, ranges: Iterable[tuple[Any, Any]]) -> str:
    """Whether the column is in one of these half-open ranges."""
    merged: list[tuple[Any, Any]] = []
    for start, end in sorted(ranges):
        if merged and start == merged[-1][1]:
            start, _ = merged.pop()
        merged.append((start, end))
    name = identifier(column.name)
    return _any([f"{name} >= {literal.format(a)} AND {name} < {literal.format(b)}" for a, b in merged])


def _equal(columns: Sequence[KeyColumn], values: Iterable[Values]) -> str:
    """Whether the columns have one of these values. What goes with the same values of the other columns is joined."""
    first, *others = columns
    rest: dict[Value, list[Values]] = {}
    for value, *more in values:
        rest.setdefault(value, []).append(tuple(more))
    same: dict[tuple[Values, ...], list[Value]] = {}
    for value, others_of_it in rest.items():
        same.setdefault(tuple(others_of_it), []).append(value)
    parts = []
    for following, found in same.items():
        one = _any([_in(first, found[at : at + MAX_IN]) for at in range(0, len(found), MAX_IN)])
        parts.append(f"({one}) AND ({_equal(others, following)})" if others else one)
    return _any(parts)


def _in(column: KeyColumn, values: Sequence[Value]) -> str:
    literals = [column.literal(each) for each in values]
    name = identifier(column.name)
    return f"{name} = {literals[0]}" if len(literals) == 1 else f"{name} IN ({', '.join(literals)})"


def _any(conditions: Sequence[str]) -> str:
    return conditions[0] if len(conditions) == 1 else " OR ".join(f"({each})" for each in conditions)


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
