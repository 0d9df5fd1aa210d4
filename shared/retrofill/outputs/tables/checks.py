"""Refuses rows that do not fit a table or its interval, and tables and keys by which the rows of an interval cannot be
replaced alone.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timezone
from typing import Any, Collection, Iterator, Sequence

from retrofill.errors import first_line
from retrofill.outputs.cannot_stage import CannotStage, DoesNotFit, NoSuchColumn, OtherInterval
from retrofill.outputs.tables.group import is_partitioned_by, transforms
from retrofill.outputs.tables.key import INTEGERS, Key, knows_zone
from retrofill.protocol.launch import Interval, Launch
from retrofill.protocol.names_of_time import DAY_FORMAT, just_before, twin
from retrofill.protocol.table_output import identifier
from retrofill.wording import span

# Of one interval: a year has 8,760 hours. Its minutes are too many.
MAX_VALUES = 10_000
_UNITS = {0: "days or longer units", 3600: "hours", 60: "minutes", 1: "seconds"}


def refuse_ambiguous(key: Key, interval: Interval) -> None:
    """Raise ``NoSuchColumn`` if a moment outside of the interval has the same key as one in it."""
    if key.type == "timestamp":
        return
    by_clock = key.type == "timestamp_ntz"
    if not key.zone and (by_clock or key.seconds):
        _refuse_unknown_clocks(key, interval)
    local = key.local(interval)
    own = set() if by_clock else _own(key, local)
    # An end within a unit, or within an hour that occurs twice, has one of these outside of the interval.
    near = (
        (local.start, just_before(local.start)),
        (local.start, twin(local.start)),
        (local.end, local.end),
        (local.end, twin(just_before(local.end))),
    )
    for end, moment in near:
        if moment is None or _is_in(moment, local):
            continue
        if _is_in(twin(moment), local) if by_clock else key.value(moment) in own:
            raise _ambiguous(key, end, moment)


def _own(key: Key, interval: Interval) -> set[tuple[str | int, ...]]:
    seconds = (interval.end.astimezone(timezone.utc) - interval.start.astimezone(timezone.utc)).total_seconds()
    if seconds / (key.seconds or 86_400) > MAX_VALUES:
        raise NoSuchColumn(
            f"column {key.column!r} has more than {MAX_VALUES:,} values of {span(interval.start, interval.end)}: "
            "name a column of type timestamp, or use shorter intervals"
        )
    values = key.values(interval)
    for number, column in enumerate(key.columns):
        most = max(value[number] for value in values) if column.type in INTEGERS else 0
        if int(most) > INTEGERS.get(column.type, (0,))[0]:
            raise NoSuchColumn(f"column {column.name!r} is of type {column.type}, which is too small for {most}")
    return set(values)


def _is_in(moment: datetime | None, interval: Interval) -> bool:
    """Compared in UTC: in one time zone, Python compares what clocks show."""
    if moment is None:
        return False
    start, at, end = (each.astimezone(timezone.utc) for each in (interval.start, moment, interval.end))
    return start <= at < end


def _ambiguous(key: Key, end: datetime, moment: datetime) -> NoSuchColumn:
    if (key.seconds or key.type == "timestamp_ntz") and twin(moment) is not None:
        return NoSuchColumn(
            f"column {key.column!r} has no time zone, and {end.isoformat()} is in an hour that occurs twice: "
            'name a column of type timestamp, or one in UTC with zone="UTC", or use an offset (%z) in its format'
        )
    return NoSuchColumn(
        f"column {key.column!r} has {_UNITS[key.seconds]}, but an interval begins or ends at {end.isoformat()}: "
        "name a column of type timestamp, or one of shorter units"
    )


def _refuse_unknown_clocks(key: Key, interval: Interval) -> None:
    """Without data about a time zone, only days are known not to be cut by a clock change."""
    if knows_zone(interval) or all(each.time() == time() for each in (interval.start, interval.end)):
        return
    raise NoSuchColumn(
        f"column {key.column!r} has no time zone, and this Python has no data about the pipeline's: use Python 3.9 or newer, "
        'a column of type timestamp, or one in UTC with zone="UTC"'
    )


_DAY = r"\A\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])\z"
# Time zones without clock changes.
_FIXED_ZONES = re.compile(r"(UTC|GMT|Etc/UTC|Z|[+-]\d\d:\d\d)\Z")
# Iceberg keeps so many characters of the least and the greatest text of a file.
_KEPT_CHARACTERS = 16
_days_only: set[tuple[object, ...]] = set()


def refuse_other_text(launch: Launch, session: Any, table: str, key: Key) -> None:
    """Raise ``NoSuchColumn`` if a column of text, of whose format nothing was said, has anything but dates.

    Looked at once in this process for a version of the code: it reads the whole column. Later ones are nobody's rows.
    """
    from pyspark.sql.functions import col

    for name in (each.name for each in key.columns if each.type == "string" and each.format == DAY_FORMAT):
        looked_at = (launch.pipeline.name, launch.pipeline.code, table, name)
        if looked_at in _days_only:
            continue
        column = col(identifier(name))
        other = session.table(table).where(~column.rlike(_DAY)).select(column).limit(1).collect()
        if other:
            raise NoSuchColumn(
                f"column {name!r} of {table} has {other[0][0]!r}, which is no date like 2013-01-31: say how it names "
                f'its day or hour, like column={{"{name}": "%Y%m%d"}}'
            )
        _days_only.add(looked_at)


def refuse_clock_partitions(session: Any, table: str, schema: Any) -> None:
    """Raise ``CannotStage`` for a Delta table that is partitioned by a timestamp, where clocks are set back.

    Delta writes the values of partitions by the session's clock, so those of an hour that occurs twice become one.
    """
    moments = {field.name for field in schema if field.dataType.simpleString() == "timestamp"}
    zone = session.conf.get("spark.sql.session.timeZone")
    if not moments or _FIXED_ZONES.match(zone):
        return
    found = session.sql(f"DESCRIBE DETAIL {table}").select("partitionColumns").collect()[0].partitionColumns
    for name in (each for each in found if each in moments):
        raise CannotStage(
            f"{table} is partitioned by the timestamp {name!r}, which Delta writes by the clock of {zone}: partition it by a date, "
            "or set spark.sql.session.timeZone to UTC"
        )


def refuse_shared_files(session: Any, table: str, key: Key, intervals: Sequence[Interval]) -> None:
    """Raise ``CannotStage`` if files of an Iceberg table would not be those of one value of each of the key's columns.

    Iceberg replaces a file only if it knows that all rows are to go. Of several names, it does only for partitions.
    """
    if key.is_range:
        return
    values = [key.values(each) for each in intervals]

    def needs_partitions(number: int) -> bool:
        several = any(len({value[number] for value in each}) > 1 for each in values)
        return several or any(len(str(value[number])) > _KEPT_CHARACTERS for each in values for value in each)

    columns = [column.name for number, column in enumerate(key.columns) if needs_partitions(number)]
    # Most keys have one short value, and the table need not be asked.
    parts = transforms(session, table) if columns else []
    for name in columns:
        if not is_partitioned_by(parts, name):
            raise CannotStage(
                f"{table} is not partitioned by {name!r}: Iceberg replaces whole files, so partition it by "
                f"{key.column}, and rewrite its data files"
            )


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
        f"a row for {table} has {has}, outside of the interval {span(whole.start, whole.end)}: "
        f"write only the interval's rows{formats}"
    )


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
