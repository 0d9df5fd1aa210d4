"""Texts in a callback's kwargs that refer to what happened: ``{run.logical_date:%Y-%m-%d}``.

Only the names below are known. Unlike with ``str.format``, attributes, indexes and conversions are
refused, so a text cannot reach other data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from string import Formatter
from typing import Any
from zoneinfo import ZoneInfo

_NOW = datetime(2000, 1, 1, tzinfo=UTC)
# Names with an example value, on which formats are tried when an alert is defined.
BACKFILL_FIELDS: dict[str, Any] = {
    "deadline.id": 1,
    "deadline.alert": "",
    "deadline.reference": "",
    "deadline.due_at": _NOW,
    "deadline.detected_at": _NOW,
    "deadline.late_seconds": 0.5,
    "pipeline": "",
    "backfill.id": "",
    "backfill.runs": 1,
    "backfill.runs_done": 1,
}
FIELDS: dict[str, Any] = BACKFILL_FIELDS | {
    "run.id": 1,
    "run.logical_date": _NOW,
    "run.interval_start": _NOW,
    "run.interval_end": _NOW,
    "run.state": "",
    "run.attempt": 1,
    "task": "",
    "digest.count": 1,
}
_BACKFILL: dict[str, Any] = {"pipeline": "", "backfill.id": "", "backfill.runs": 1}
# Of a digest, the run is the first that failed.
RUN_FAILED_FIELDS: dict[str, Any] = _BACKFILL | {
    "backfill.runs_done": 1,
    "run.id": 1,
    "run.logical_date": _NOW,
    "run.interval_start": _NOW,
    "run.interval_end": _NOW,
    "run.attempt": 1,
    "run.failed_at": _NOW,
    "error.type": "",
    "error.message": "",
    "digest.count": 1,
}
BACKFILL_ENDED_FIELDS: dict[str, Any] = _BACKFILL | {
    "backfill.state": "",
    "backfill.ended_at": _NOW,
    "backfill.succeeded": 1,
    "backfill.failed": 1,
    "backfill.cancelled": 1,
}
# Allowed formats: strftime's for a datetime; sign, alignment, width and precision for a number;
# width for a text. None can produce a control character or unbounded text.
NUMBER_FORMAT = re.compile(r"[ +-]?[<>^]?[0-9]{0,3},?(\.[0-9]{1,2})?[dfg%]?", re.ASCII)
TEXT_FORMAT = re.compile(r"[<>^]?[0-9]{0,3}", re.ASCII)
MOMENT_FORMAT = re.compile(r"[ -~]{0,100}", re.ASCII)
MAX_WIDTH = 200
# As JSON, before and after references are replaced.
MAX_KWARGS_BYTES = 16_384
MAX_EXPANDED_BYTES = 65_536


def check_templates(kwargs: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Check that texts in ``kwargs`` (JSON) refer only to ``fields``, and the size.

    Raises ``ValueError``.
    """
    size = len(json.dumps(kwargs, allow_nan=False))
    if size > MAX_KWARGS_BYTES:
        raise ValueError(
            f"kwargs have {size:,} bytes as JSON, more than {MAX_KWARGS_BYTES:,}: pass the location of the data instead"
        )
    expand(kwargs, fields)


def expand(kwargs: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """``kwargs`` (JSON) with the references in its texts replaced. Raises ``ValueError``."""
    expanded = {name: _expand(value, fields) for name, value in kwargs.items()}
    if len(json.dumps(expanded)) > MAX_EXPANDED_BYTES:
        raise ValueError(f"kwargs would grow beyond {MAX_EXPANDED_BYTES:,} bytes: use fewer references")
    return expanded


def in_zone(fields: Mapping[str, Any], timezone: str) -> dict[str, Any]:
    """``fields`` with their times in the pipeline's time zone."""
    zone = ZoneInfo(timezone)
    found = dict(fields)
    for name, value in fields.items():
        if isinstance(value, datetime):
            with suppress(OverflowError):  # at the calendar's edge it stays in UTC
                found[name] = value.astimezone(zone)
    return found


def _expand(value: Any, fields: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return _expand_text(value, fields)
    if isinstance(value, Mapping):
        return {key: _expand(inner, fields) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_expand(inner, fields) for inner in value]
    return value


def _expand_text(text: str, fields: Mapping[str, Any]) -> str:
    parts: list[str] = []
    try:
        for literal, name, spec, conversion in Formatter().parse(text):
            parts.append(literal)
            if name is not None:
                parts.append(_field(name, spec or "", conversion, fields))
    except ValueError as e:
        raise ValueError(f"the text {text[:60]!r}: {e} (write a literal brace twice: {{{{ or }}}})") from e
    return "".join(parts)


def _field(name: str, spec: str, conversion: str | None, fields: Mapping[str, Any]) -> str:
    if name not in fields:
        raise ValueError(f"unknown name {name!r}; known names: {', '.join(sorted(fields))}")
    if conversion:
        raise ValueError(f"{{{name}!{conversion}}} has a conversion: remove !{conversion}")
    found = fields[name]
    if found is None:
        return ""
    _check_format(name, spec, found)
    if isinstance(found, datetime) and not spec:
        return found.isoformat()
    try:
        return format(found, spec)
    except (OverflowError, UnicodeError) as e:
        raise ValueError(f"{name!r} cannot be formatted as {spec!r}: {e}") from e


def _check_format(name: str, spec: str, value: Any) -> None:
    if isinstance(value, datetime):
        allowed = MOMENT_FORMAT.fullmatch(spec)
    else:
        known = NUMBER_FORMAT if isinstance(value, int | float) else TEXT_FORMAT
        widths = [int(digits) for digits in re.findall(r"[0-9]+", spec)]
        allowed = known.fullmatch(spec) if max(widths, default=0) <= MAX_WIDTH else None
    if allowed is None:
        raise ValueError(f"the format {spec[:40]!r} of {name!r} is not allowed")
