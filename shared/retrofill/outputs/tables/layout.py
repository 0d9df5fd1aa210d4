"""Whether a table's partitions keep the rows of different intervals in different files."""

from __future__ import annotations

import re
from datetime import datetime, time, timezone
from typing import Any, Callable, Mapping, Sequence

from retrofill.outputs.tables.group import Group
from retrofill.outputs.tables.key import Key
from retrofill.protocol.launch import Interval
from retrofill.protocol.table_output import parts_of

_TRANSFORM = re.compile(r"(?P<function>\w+)\((?P<column>.+)\)\Z")
_Begins = Callable[[datetime], bool]


def _hour(moment: datetime) -> bool:
    return (moment.minute, moment.second, moment.microsecond) == (0, 0, 0)


def _day(moment: datetime) -> bool:
    return moment.time() == time()


# Whether a moment begins a partition, by transform. The identity of a column keeps any two values apart.
_BEGINS: Mapping[str, _Begins] = {
    "identity": lambda _: True,
    "hours": _hour,
    "days": _day,
    "months": lambda moment: moment.day == 1 and _day(moment),
    "years": lambda moment: (moment.month, moment.day) == (1, 1) and _day(moment),
}


def transforms(session: Any, table: str) -> list[str]:
    """The partition transforms of an Iceberg table as Spark shows them, like ``days(ts)``."""
    rows = session.sql(f"DESCRIBE TABLE {table}").collect()
    # A column may have any name.
    rows = rows[len(session.table(table).columns) :]
    names = [row.col_name for row in rows]
    if "# Partitioning" in names:
        parts = [row for row in rows[names.index("# Partitioning") + 1 :] if row.col_name.startswith("Part ")]
        return [row.data_type for row in parts]
    if "# Partition Information" in names:
        return [row.col_name for row in rows[names.index("# Partition Information") + 2 :] if row.data_type]
    return []


def separates(partitions: Sequence[str], group: Group) -> bool:
    """Whether partition transforms keep the rows of the group's intervals apart."""
    key = Key.of(group.output)
    if key.is_range:
        ends = _ends(key, group)
        found = map(_parsed, partitions)
        return any(_is(column, key.column) and all(map(_BEGINS.get(how, _never), ends)) for how, column in found)
    own = [number for number, each in enumerate(key.columns) if is_partitioned_by(partitions, each.name)]
    return _are_apart([{tuple(value[n] for n in own) for value in key.values(each)} for each in group.intervals])


def is_partitioned_by(partitions: Sequence[str], column: str) -> bool:
    """Whether partition transforms keep the values of a column apart."""
    return any(how == "identity" and _is(of, column) for how, of in map(_parsed, partitions))


def _parsed(partition: str) -> tuple[str, str]:
    """The name of a transform, and that of its column."""
    found = _TRANSFORM.match(partition)
    return (found["function"], found["column"]) if found else ("identity", partition)


def _is(column: str, name: str) -> bool:
    return column.lower() == name.lower() or parts_of(column)[-1].lower() == name.lower()


def _never(_: datetime) -> bool:
    return False


def _ends(key: Key, group: Group) -> set[datetime]:
    """The moments at which its intervals begin and end, as the column has them: timestamps are in UTC."""
    zoned = key.type == "timestamp"
    ends = (moment for each in group.intervals for moment in _both(each if zoned else key.local(each)))
    return {(moment.astimezone(timezone.utc) if zoned else moment).replace(tzinfo=None) for moment in ends}


def _both(interval: Interval) -> tuple[datetime, datetime]:
    return interval.start, interval.end


def _are_apart(values: Sequence[set[tuple[object, ...]]]) -> bool:
    """Whether no value is in two of these."""
    return sum(map(len, values)) == len({value for each in values for value in each})
