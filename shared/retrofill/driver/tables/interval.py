"""The condition in SQL that selects the rows of an interval."""

from __future__ import annotations

from datetime import datetime, time, timezone

from retrofill.driver.cannot_stage import NoSuchColumn
from retrofill.driver.interval import Interval
from retrofill.driver.tables.output import identifier

_DATES = ("date", "string")


def condition(column: str, type: str, interval: Interval) -> str:
    """The condition for ``start <= column < end``. ``type``: the column's, in SQL.

    A date, a timestamp without time zone, and a date as text (``2013-01-31``) are in the pipeline's
    time zone. Raises ``NoSuchColumn``.
    """
    start, end = (_literal(column, type, moment) for moment in (interval.start, interval.end))
    if type != "timestamp" and not interval.start.replace(tzinfo=None) < interval.end.replace(tzinfo=None):
        raise NoSuchColumn(_ambiguous(column, interval.start))
    return f"{identifier(column)} >= {start} AND {identifier(column)} < {end}"


def _literal(column: str, type: str, moment: datetime) -> str:
    if type == "timestamp":
        return f"TIMESTAMP '{moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(' ')} UTC'"
    if type == "timestamp_ntz":
        if moment.fold:
            raise NoSuchColumn(_ambiguous(column, moment))
        return f"TIMESTAMP_NTZ '{moment.replace(tzinfo=None).isoformat(' ')}'"
    if type not in _DATES:
        raise NoSuchColumn(
            f"column {column!r} is of type {type}, which tells no interval: name a column of type date, timestamp or string"
        )
    if not _begins_a_day(moment):
        raise NoSuchColumn(
            f"column {column!r} has days, but an interval begins or ends at {moment.isoformat()}: "
            "name a column of type timestamp"
        )
    day = moment.date().isoformat()
    return f"DATE '{day}'" if type == "date" else f"'{day}'"


def _begins_a_day(moment: datetime) -> bool:
    """Whether it is the first moment of its day, which is not midnight where that is skipped."""
    midnight = datetime.combine(moment.date(), time(), moment.tzinfo)
    return midnight.astimezone(timezone.utc) == moment.astimezone(timezone.utc)


def _ambiguous(column: str, moment: datetime) -> str:
    return (
        f"column {column!r} has no time zone, and {moment.isoformat()} is in an hour that occurs twice: "
        "name a column of type timestamp"
    )
