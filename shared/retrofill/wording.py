"""Words that people read: numbers with their noun, ordinals, and ranges of time in one form.

A range is in the pipeline's time zone, and both of its ends are included, as in a request. Whole days are written as days
(``2024-01-01 – 2024-01-31``), everything else to the minute (``2024-01-01 05:00 – 10:59``). A local time that occurs twice
has its offset. The console does the same in ``format.js``; ``tests/support/ranges.json`` has the cases for both.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo

_SECOND = timedelta(seconds=1)
_DAY = len("2024-01-01")


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 run``, ``2 runs``, ``1,000 runs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``3rd``, ``11th``, ``21st``."""
    ends = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ends}"


def times(number: int) -> str:
    """``once``, ``2 times``."""
    return "once" if number == 1 else plural(number, "time")


def moment(at: datetime, zone: tzinfo | None = None) -> str:
    """A logical date, as short as possible: the beginning of a day is that day. ``zone``: default, its own."""
    local = at.astimezone(zone) if zone is not None else at
    return _day(local) if _begins_day(local) else f"{_day(local)} {_clock(local, seconds=local.second > 0)}"


def span(start: datetime, end: datetime, zone: tzinfo | None = None) -> str:
    """The range ``[start, end)`` in the form above. ``zone``: default, their own."""
    first, beyond = (at if zone is None else at.astimezone(zone) for at in (start, end))
    last = _before(beyond)
    if _begins_day(first) and _begins_day(beyond):
        begin, until = _day(first), _day(last)
    else:
        seconds = first.second > 0 or beyond.second > 0
        begin, until = (f"{_day(at)} {_clock(at, seconds=seconds)}" for at in (first, last))
    if begin == until:
        return begin
    # The day is not repeated.
    same_day = begin[:_DAY] == until[:_DAY]
    return f"{begin} – {until[_DAY + 1 :] if same_day else until}"


def _before(at: datetime) -> datetime:
    """The second before, whatever the clocks show then."""
    return (at.astimezone(timezone.utc) - _SECOND).astimezone(at.tzinfo)


def _begins_day(local: datetime) -> bool:
    """Not always at midnight, which clocks may skip."""
    return _before(local).date() != local.date()


def _day(local: datetime) -> str:
    return local.date().isoformat()


def _clock(local: datetime, *, seconds: bool) -> str:
    text = local.time().isoformat("seconds" if seconds else "minutes")
    twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
    return f"{text}{local.isoformat()[-6:]}" if twice else text
