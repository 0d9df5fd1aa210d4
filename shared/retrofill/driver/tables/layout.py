"""Whether a table's partitions keep the rows of different intervals in different files."""

from __future__ import annotations

import re
from datetime import datetime, time, timezone
from typing import Callable, Mapping, Sequence

from retrofill.driver.interval import interval_of
from retrofill.driver.tables.group import Group
from retrofill.driver.tables.output import parts_of

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


def separates(partitions: Sequence[str], group: Group) -> bool:
    """Whether one of these partition transforms, like ``days(ts)``, begins a new partition at each interval's ends."""
    return any(_separates(partition, group) for partition in partitions)


def _separates(partition: str, group: Group) -> bool:
    found = _TRANSFORM.match(partition)
    transform, column = (found["function"], found["column"]) if found else ("identity", partition)
    begins = _BEGINS.get(transform)
    if begins is None or parts_of(column)[-1].lower() != group.output.column.lower():
        return False
    return all(map(begins, _ends(group)))


def _ends(group: Group) -> set[datetime]:
    """The moments at which its intervals begin and end, as the column has them: timestamps are in UTC."""
    zoned = group.output.type == "timestamp"
    intervals = (interval_of(group.launch, run) for run in group.runs)
    ends = (moment for each in intervals for moment in (each.start, each.end))
    return {(moment.astimezone(timezone.utc) if zoned else moment).replace(tzinfo=None) for moment in ends}
