"""Names of units of time, as columns have them: ``%Y%m%d`` names a day, ``%Y-%m-%dT%H`` an hour, ``%Y`` with ``%m`` a month.

They are written here, not by ``strftime``, whose results depend on the platform.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, timezone
from typing import Callable, Iterable, Iterator, Mapping

DAY_FORMAT = "%Y-%m-%d"
# Of each directive: its digits, and its number of a moment.
_NUMBERS: Mapping[str, tuple[int, Callable[[datetime], int]]] = {
    "Y": (4, lambda moment: moment.year),
    "m": (2, lambda moment: moment.month),
    "d": (2, lambda moment: moment.day),
    "j": (3, lambda moment: moment.timetuple().tm_yday),
    "G": (4, lambda moment: moment.isocalendar()[0]),
    "V": (2, lambda moment: moment.isocalendar()[1]),
    "u": (1, lambda moment: moment.isocalendar()[2]),
    "H": (2, lambda moment: moment.hour),
    "M": (2, lambda moment: moment.minute),
    "S": (2, lambda moment: moment.second),
}
OFFSET = "z"
ALLOWED = " ".join(f"%{name}" for name in (*_NUMBERS, OFFSET))
# What names one day, and what else names one longer unit.
_DAYS = ({"Y", "m", "d"}, {"Y", "j"}, {"G", "V", "u"})
_LONGER = ({"Y"}, {"Y", "m"}, {"G", "V"})
_TIMES = {frozenset("H"): 3600, frozenset("HM"): 60, frozenset("HMS"): 1}
_DIRECTIVE = re.compile(r"%(-?)(.?)", re.DOTALL)
# No quotes or backslashes: what SQL makes of them depends on its settings.
_BETWEEN = re.compile(r"[A-Za-z0-9 _.:,/=+-]*\Z")


class NotAFormat(ValueError):
    """The message goes on where a sentence has named the format."""


def written(format: str, moment: datetime) -> str:
    """The name, by the clock of the moment's time zone."""

    def text(found: re.Match[str]) -> str:
        bare, name = found.groups()
        if name == OFFSET:
            return _offset(moment)
        digits, number = _NUMBERS[name]
        return str(number(moment)) if bare else f"{number(moment):0{digits}}"

    return _DIRECTIVE.sub(text, format)


def directives(format: str) -> set[str]:
    return {found.group(2) for found in _DIRECTIVE.finditer(format)}


def seconds_of(directives: Iterable[str]) -> int:
    """Of the unit that they name; 0 for days and longer ones."""
    return _TIMES.get(frozenset(directives) & frozenset("HMS"), 0)


def refuse_unreadable(format: str, *, integer: bool) -> None:
    """Raise ``NotAFormat`` if the numbers that a name was written from cannot be read from it."""
    for found in _DIRECTIVE.finditer(format):
        bare, name = found.groups()
        if name not in _NUMBERS and (name != OFFSET or bare):
            raise NotAFormat(f"has {found.group()!r}: use {ALLOWED}")
        after = format[found.end() : found.end() + 1]
        if bare and (after == "%" or after.isdigit()):
            raise NotAFormat(f"does not tell where {found.group()} ends: use %{name}")
    between = _DIRECTIVE.sub("", format)
    if integer and (between or OFFSET in directives(format)):
        raise NotAFormat("is not that of a number: use only directives with digits")
    if not _BETWEEN.match(between):
        raise NotAFormat("may have only letters, digits, spaces and -_.:,/=+ beside its directives")


def refuse_incomplete(directives: set[str]) -> None:
    """Raise ``NotAFormat`` if those of all columns do not name exactly one unit of time."""
    clock, days = directives & set("HMS"), directives - set("HMS") - {OFFSET}
    if not any(each <= days for each in _DAYS) and (clock or days not in _LONGER):
        raise NotAFormat(
            "name no single day (%Y %m %d, %Y %j or %G %V %u), month (%Y %m), ISO week (%G %V) or year (%Y)"
        )
    if clock and frozenset(clock) not in _TIMES:
        raise NotAFormat("have minutes without hours, or seconds without minutes")
    if OFFSET in directives and not clock:
        raise NotAFormat("have %z without %H")


def moments(start: datetime, end: datetime, seconds: int) -> Iterator[datetime]:
    """At least one moment of each unit in ``[start, end)``, in the time zone of both. ``seconds``: of the unit; 0: a day."""
    return _in_units(start, end, seconds) if seconds else _in_days(start, just_before(end))


def just_before(moment: datetime) -> datetime:
    """Computed in UTC: in a time zone, Python computes with what clocks show."""
    return (moment.astimezone(timezone.utc) - timedelta(microseconds=1)).astimezone(moment.tzinfo)


def twin(moment: datetime) -> datetime | None:
    """The other moment at which clocks show the same; ``None`` if there is none."""
    other = moment.replace(fold=1 - moment.fold)
    at = other.astimezone(timezone.utc)
    if at == moment.astimezone(timezone.utc) or _clock(at.astimezone(moment.tzinfo)) != _clock(moment):
        return None
    return other


def _in_days(start: datetime, last: datetime) -> Iterator[datetime]:
    for number in range((last.date() - start.date()).days + 1):
        noon = datetime.combine(start.date() + timedelta(days=number), time(12), start.tzinfo)
        # Where the date line was moved, a day was left out.
        if _clock(noon.astimezone(timezone.utc).astimezone(start.tzinfo)) == _clock(noon):
            yield noon


def _in_units(start: datetime, end: datetime, seconds: int) -> Iterator[datetime]:
    at, last = start.astimezone(timezone.utc), end.astimezone(timezone.utc)
    while at < last:
        here = at.astimezone(start.tzinfo)
        yield here
        into = (here.minute * 60 + here.second) % seconds
        at = _clock_change(at, at + timedelta(seconds=seconds - into, microseconds=-here.microsecond), here)


def _clock_change(at: datetime, following: datetime, here: datetime) -> datetime:
    """The first second from ``at`` to ``following`` (both in UTC) with another offset than ``here``, or else ``following``."""

    def is_changed(moment: datetime) -> bool:
        return moment.astimezone(here.tzinfo).utcoffset() != here.utcoffset()

    if is_changed(following):
        while following - at > timedelta(seconds=1):
            middle = at + timedelta(seconds=(following - at) // timedelta(seconds=2))
            at, following = (at, middle) if is_changed(middle) else (middle, following)
    return following


def _clock(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None, fold=0)


def _offset(moment: datetime) -> str:
    minutes = int((moment.utcoffset() or timedelta()).total_seconds()) // 60
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"
