"""Refuses tables in which the rows of a key cannot be replaced alone, when rows are staged for them."""

from __future__ import annotations

import re
from typing import Any, Sequence

from retrofill.outputs.cannot_stage import CannotStage, NoSuchColumn
from retrofill.outputs.tables.key import Key
from retrofill.outputs.tables.layout import is_partitioned_by, transforms
from retrofill.protocol.interval import Interval
from retrofill.protocol.launch import Launch
from retrofill.protocol.names_of_time import DAY_FORMAT
from retrofill.protocol.table_output import identifier

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
