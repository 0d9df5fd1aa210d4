"""Refuses a key whose values cannot tell an interval's rows from those of its neighbors."""

from __future__ import annotations

from datetime import datetime, time, timezone

from retrofill.outputs.cannot_stage import NoSuchColumn
from retrofill.outputs.tables.key import INTEGERS, Key, knows_zone
from retrofill.protocol.interval import Interval
from retrofill.protocol.names_of_time import just_before, twin

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
            f"column {key.column!r} has more than {MAX_VALUES:,} values from {interval.start.isoformat()} to "
            f"{interval.end.isoformat()}: name a column of type timestamp, or use shorter intervals"
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
