"""Texts of scripts and programs with fields that are filled in for each run, like ``{interval.start-28d:%Y-%m-%d}``."""

from __future__ import annotations

import calendar
import difflib
import re
import string
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any, Callable, Dict, Mapping, Sequence

from retrofill.protocol.names_of_time import (
    DAY_FORMAT,
    NotAFormat,
    directives,
    moments,
    refuse_incomplete,
    refuse_unreadable,
    seconds_of,
    written,
)
from retrofill.sdk.texts import parted, why_not_local

_UNITS = "min|mo|s|h|d|w|y"
_MOMENT = re.compile(
    rf"(?P<name>interval\.(?:start|end|first_day|last_day)|run\.logical_date)(?P<form>_utc|_epoch)?(?P<steps>(?:[+-]\d{{1,5}}(?:{_UNITS}))*)"
)
_STEP = re.compile(rf"([+-]\d{{1,5}})({_UNITS})")
# What a field of each unit of time in the interval becomes, until the partitions are named by it. No argument has such a byte.
_EACH = re.compile("\0(_utc)?:(.*?)\0")
# What a run may stage.
MAX_PARTITIONS = 1000
EXAMPLE = "{stage_partitions:/data/orders, day={interval.start:%Y-%m-%d}}"
_ONE_FIELD = re.compile(r"\{((?:interval|run|conf)[.\[][^{}:!]*)\}")
# As Airflow and others write a field. Without blanks it may be a literal brace of ours.
_JINJA = re.compile(r"\{\{\s+[A-Za-z_][^{}]*\}\}|\{%")
NAMES = (
    "interval.start",
    "interval.end",
    "interval.first_day",
    "interval.last_day",
    "run.id",
    "run.attempt",
    "run.backfill_id",
    "run.logical_date",
)
KNOWN = (
    f"use {', '.join(NAMES)}, a key of conf, like conf[key], stage:PATH, stage_partitions:PATH, PARTITION, stage_table:NAME, "
    "stage_location:NAME, staged:PATH or secret[NAME]. A moment may have _utc or _epoch, and steps in s, min, h, d, w, mo or y, "
    "like interval.start-28d. In PARTITION, interval.each has each day or hour of the interval"
)
_SECRET = re.compile(r"\{secret[.\[]([^\]}:!]*)")
_SOME_SECRET = "\1secret\1"
# What a key of any conf becomes.
_SOME_VALUE = "…"
# What may lead out of a permitted place, or means something else to Spark.
_NOT_IN_PATHS = re.compile(r"[%,#\r\n\0]|(?:^|/)\.\.(?:/|$)")


class BadArgument(ValueError):
    """A text refers to what is not there. The message names the text."""


@dataclass(frozen=True)
class Values:
    """What fields become. The moments are in the pipeline's time zone.

    ``stage``, ``staged``: the place of a path. ``partitions``: that of a path where these partitions are written.
    ``secrets``: by name.
    ``tables``: the declared names of tables. ``lend``: what is written instead of the one with that number and name;
    ``locate``: the directory of that.
    """

    start: datetime
    end: datetime
    run: Mapping[str, Any]
    conf: Mapping[str, Any]
    stage: Callable[[str], str]
    staged: Callable[[str], str]
    partitions: Callable[[str, Sequence[str]], str]
    secrets: Mapping[str, str]
    tables: Sequence[str] = ()
    lend: Callable[[int, str], str] = lambda _, name: name
    locate: Callable[[int, str], str] = lambda _, name: name


def fill(texts: Sequence[str], values: Values) -> list[str]:
    """The texts with their fields filled in.

    Raises ``BadArgument``, and what the functions of ``values`` raise.
    """
    formatter = _Formatter(values)
    return [_filled(text, formatter) for text in texts]


def fill_between(text: str, values: Values) -> str:
    """The text with its fields filled in. All other braces stay, as those of JSON do.

    Raises as ``fill`` does.
    """
    formatter = _Formatter(values)
    try:
        parts = parted(text)
    except ValueError as e:
        raise BadArgument(str(e)) from e
    return "".join(_filled(part, formatter) if is_field else part for part, is_field in parts)


def fill_path(text: str, values: Values) -> str:
    """The path or address with its fields filled in, by which it cannot lead elsewhere. Raises ``BadArgument``."""
    (filled,) = fill([text], values)
    if filled != text and _NOT_IN_PATHS.search(filled):
        raise BadArgument(f"in {text!r}: a field may not add '..', '%', ',' or '#' to a path, as in {filled[:200]!r}")
    return filled


def secrets_in(texts: Sequence[str]) -> list[str]:
    """The names of the secrets that the texts refer to."""
    return list(dict.fromkeys(name for text in texts for name in _SECRET.findall(text)))


def typed(texts: Mapping[str, object], values: Values) -> dict[str, object]:
    """What the texts become, by name. A text that is one field only keeps its type, as ``{interval.start}`` is a moment.

    What is no text stays as it is. Raises as ``fill`` does.
    """
    formatter = _Formatter(values)

    def of(text: str) -> object:
        field = _ONE_FIELD.fullmatch(text)
        return formatter.get_field(field[1], (), {})[0] if field else _filled(text, formatter)

    return {name: of(text) if isinstance(text, str) else text for name, text in texts.items()}


def check(texts: Sequence[str], tables: Sequence[str] = ()) -> None:
    """Fill in the texts for an example of an interval, with any conf.

    ``tables``: the declared names of those that are staged. Raises ``BadArgument``.
    """
    start = datetime(2000, 1, 1, tzinfo=timezone.utc)
    run = {"id": 1, "attempt": 1, "backfill_id": "b"}
    used: set[str] = set()

    def lend(_: int, name: str) -> str:
        used.add(name)
        return _place(name)

    values = Values(
        start,
        start + timedelta(minutes=1),
        run,
        _Anything(),
        _directory,
        _directory,
        lambda path, _: _directory(path),
        AnySecret(),
        tables,
        lend,
        lend,
    )
    fill(texts, values)
    for declared, name in zip(tables, fill(tables, values)):
        if name not in used:
            raise BadArgument(
                f"the table {declared!r} is declared, but nothing gets its staged name: pass {{stage_table:{declared}}}"
            )


def _place(path: str) -> str:
    if _SOME_SECRET in path:
        # Others see the path: it becomes part of the run's output.
        raise BadArgument("a path that is staged cannot have a secret in it")
    return path


def _directory(path: str) -> str:
    known = _place(path).partition(_SOME_VALUE)[0]
    # A value may be the rest of an address, or all of it.
    if not "file://".startswith(known.lower()) and (why := why_not_local(path)) is not None:
        raise BadArgument(why)
    return path


def _filled(text: str, formatter: _Formatter) -> str:
    shown = text if len(text) <= 100 else f"{text[:100]}…"
    jinja = _JINJA.search(text)
    if jinja is not None:
        raise BadArgument(
            f"{shown!r} has {jinja.group()[:40]!r}, a template of other tools: write {{interval.start:%Y-%m-%d}} for a day"
        )
    try:
        filled = formatter.vformat(text, (), {})
        if "\0" in filled:
            raise BadArgument(f"interval.each is for the names of partitions, as in {EXAMPLE}")
        return filled
    except ValueError as e:
        if type(e) is BadArgument:
            raise BadArgument(f"in {shown!r}: {e}") from e
        if type(e) is not ValueError:
            # Of ``stage`` and the like.
            raise
        raise BadArgument(f"in {shown!r}: {e}: a literal brace, as in JSON, is written twice") from e


class _Formatter(string.Formatter):
    """``str.format`` for plain data: dots and brackets look up keys, never attributes."""

    def __init__(self, values: Values) -> None:
        self._moments = {"interval.start": values.start, "interval.end": values.end, "run.logical_date": values.start}
        self._days = {
            "interval.first_day": values.start,
            "interval.last_day": values.end - timedelta(microseconds=1),
        }
        self._plain: dict[str, Any] = {
            "run": values.run,
            "conf": values.conf,
            "secret": values.secrets,
            "stage": _PathOf(values.stage),
            "staged": _PathOf(values.staged),
            "stage_partitions": _PartitionsOf(values),
            "stage_table": _TableOf(values, values.lend),
            "stage_location": _TableOf(values, values.locate),
        }

    def get_field(
        self,
        field_name: str,
        args: Sequence[Any],  # noqa: ARG002 - the standard library's signature
        kwargs: Mapping[str, Any],  # noqa: ARG002
    ) -> tuple[Any, str]:
        """Look up ``a.b[c]``. Raises ``BadArgument``."""
        if field_name in ("interval.each", "interval.each_utc"):
            return _Each(field_name[len("interval.each") :]), field_name
        moment = _MOMENT.fullmatch(field_name)
        if moment is not None:
            return self._moment(moment["name"], moment["form"], moment["steps"]), field_name
        value: Any = self._plain
        for key in field_name.replace("[", ".").replace("]", "").split("."):
            if not isinstance(value, Mapping) or key not in value:
                raise BadArgument(_unknown(field_name, key))
            value = value[key]
        if value is self._plain["secret"]:
            raise BadArgument("name the secret, like secret[NAME]")
        return _Whole(value) if field_name.startswith("secret") else value, field_name

    def _moment(self, name: str, form: str | None, steps: str) -> date | int:
        moment = {**self._moments, **self._days}[name]
        if form == "_utc":
            moment = moment.astimezone(timezone.utc)
        found: date = moment.date() if name in self._days else moment
        try:
            for count, unit in _STEP.findall(steps):
                found = _moved(name, found, int(count), unit)
        except OverflowError as e:
            raise BadArgument(f"{name}{form or ''}{steps} is outside the calendar") from e
        if form != "_epoch":
            return found
        if not isinstance(found, datetime):
            raise BadArgument(f"{name} is a day, which has no epoch: use interval.end_epoch")
        return int(found.timestamp())


def _moved(name: str, moment: date, count: int, unit: str) -> date:
    """Days and longer steps keep the clock's time; of shorter ones, each takes as long as the others."""
    if unit in ("mo", "y"):
        months = moment.year * 12 + moment.month - 1 + count * (12 if unit == "y" else 1)
        year, month = divmod(months, 12)
        if not 1 <= year <= 9999:
            raise OverflowError
        return moment.replace(year=year, month=month + 1, day=min(moment.day, calendar.monthrange(year, month + 1)[1]))
    if unit in ("d", "w"):
        return moment + timedelta(days=count * (7 if unit == "w" else 1))
    if not isinstance(moment, datetime):
        raise BadArgument(f"{name} is a day: take steps of d, w, mo or y, not of {unit}")
    step = timedelta(seconds=count * {"s": 1, "min": 60, "h": 3600}[unit])
    return (moment.astimezone(timezone.utc) + step).astimezone(moment.tzinfo)


def _unknown(field: str, key: str) -> str:
    if re.match(r"secret[.\[]", field):
        return f"there is no secret {key!r}: give the pool a variable of that name from a file or a variable (env)"
    if re.match(r"conf[.\[]", field):
        return f"conf has no key {key!r}: give it with the request (conf, --conf)"
    near = difflib.get_close_matches(field, NAMES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    literal = "" if re.match(r"[\w.\[\]+-]+$", field) else ". A literal brace, as in JSON, is written twice"
    return f"unknown field {field!r}: {hint}{KNOWN}{literal}"


class _PathOf:
    """What ``{stage:PATH}`` becomes; the path may contain fields itself."""

    def __init__(self, find: Callable[[str], str]) -> None:
        self._find = find

    def __format__(self, path: str) -> str:
        return self._find(path)


class _Each:
    """What ``{interval.each:%Y-%m-%d}`` becomes: a mark, of which ``_PartitionsOf`` makes the names."""

    def __init__(self, form: str) -> None:
        self._form = form

    def __format__(self, format: str) -> str:
        return f"\0{self._form}:{format or DAY_FORMAT}\0"


class _PartitionsOf:
    """What ``{stage_partitions:PATH, PARTITION}`` becomes."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def __format__(self, given: str) -> str:
        path, _, partition = (each.strip() for each in given.rpartition(","))
        if not path or not partition:
            raise BadArgument(f"stage_partitions needs a directory and the interval's partition of it, as in {EXAMPLE}")
        return self._values.partitions(path, self._names(partition))

    def _names(self, partition: str) -> list[str]:
        """One, or those of each unit of time in the interval."""
        found = _EACH.findall(partition)
        if not found:
            return [partition]
        named = {directive for _, format in found for directive in directives(format)}
        if len({form for form, _ in found}) > 1:
            raise BadArgument("interval.each and interval.each_utc cannot name one partition together")
        try:
            for _, format in found:
                refuse_unreadable(format, integer=False)
            refuse_incomplete(named)
        except NotAFormat as e:
            raise BadArgument(f"interval.each: its formats {', '.join(format for _, format in found)} {e}") from e
        start, end = self._values.start, self._values.end
        if found[0][0]:
            start, end = start.astimezone(timezone.utc), end.astimezone(timezone.utc)
        elif seconds_of(named) and isinstance(start.tzinfo, timezone) and start.utcoffset() != end.utcoffset():
            raise BadArgument("this Python has no data about the pipeline's time zone: use interval.each_utc")

        def name(moment: datetime) -> str:
            return _EACH.sub(lambda each: written(each.group(2), moment), partition)

        names: dict[str, None] = {}
        for moment in moments(start, end, seconds_of(named)):
            names[name(moment)] = None
            if len(names) > MAX_PARTITIONS:
                raise BadArgument(
                    f"the interval has more than {MAX_PARTITIONS:,} partitions: stage their parent directory"
                )
        return list(names)


class _Whole(str):
    """A secret, of which no part may be taken: it would not be recognized, and so not be masked."""

    def __format__(self, spec: str) -> str:
        if spec:
            raise BadArgument("a secret has no format: take it as it is")
        return "".join(self)

    def __repr__(self) -> str:
        raise BadArgument("a secret has no conversion: take it as it is")

    def __str__(self) -> str:
        return self


class _TableOf:
    """What ``{stage_table:NAME}`` and ``{stage_location:NAME}`` become."""

    def __init__(self, values: Values, lend: Callable[[int, str], str]) -> None:
        self._values = values
        self._lend = lend

    def __format__(self, name: str) -> str:
        declared = fill(self._values.tables, self._values)
        if name not in declared:
            known = f": they are {', '.join(declared)}" if declared else ""
            raise BadArgument(
                f"{name!r} is not one of the task's tables{known}. Say what tells its intervals, like tables=[Table({name!r}, "
                'column="day")]'
            )
        return self._lend(declared.index(name), name)


class _Anything(dict):  # type: ignore[type-arg]
    """Has each key, with a value that fits each format."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: object) -> _Anything:
        return self

    def __format__(self, spec: str) -> str:
        return _SOME_VALUE


class AnySecret(Dict[str, str]):
    """Has a secret of each name, which shows where it would become part of a path."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> str:
        return _SOME_SECRET
