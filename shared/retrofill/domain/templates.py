"""Texts in a callback's kwargs that refer to the deadline: ``{run.logical_date:%Y-%m-%d}``.

Only the names below stand for something. Nothing is looked up in an object, so that a text cannot reach beyond them as
``str.format`` lets it (attributes, indexes and conversions are refused).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from string import Formatter
from typing import Any

_NOW = datetime(2000, 1, 1, tzinfo=UTC)
# Each name with an example of what it stands for: formats are tried on the examples where they are written.
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
# A text stays a text of some size, whatever width a format asks for.
MAX_WIDTH = 200


def check_templates(value: Any, fields: Mapping[str, Any]) -> None:
    """Every text in ``value`` (JSON) refers to ``fields`` only. Raises ``ValueError`` with the names that exist."""
    expand(value, fields)


def expand(value: Any, fields: Mapping[str, Any]) -> Any:
    """``value`` (JSON) with the references in its texts replaced. Raises ``ValueError``."""
    if isinstance(value, str):
        return _expand_text(value, fields)
    if isinstance(value, Mapping):
        return {key: expand(inner, fields) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [expand(inner, fields) for inner in value]
    return value


def _expand_text(text: str, fields: Mapping[str, Any]) -> str:
    parts: list[str] = []
    try:
        for literal, name, spec, conversion in Formatter().parse(text):
            parts.append(literal)
            if name is not None:
                parts.append(_field(name, spec or "", conversion, fields))
    except ValueError as e:
        raise ValueError(f"the text {text[:60]!r}: {e} (a brace that is meant is written twice: {{{{ or }}}})") from e
    return "".join(parts)


def _field(name: str, spec: str, conversion: str | None, fields: Mapping[str, Any]) -> str:
    if name not in fields:
        raise ValueError(f"there is no {name!r}; there are: {', '.join(sorted(fields))}")
    if conversion:
        raise ValueError(f"{{{name}!{conversion}}} asks for a conversion: leave out !{conversion}")
    if "{" in spec or any(int(digits) > MAX_WIDTH for digits in _numbers(spec)):
        raise ValueError(f"the format {spec!r} of {name!r} is not allowed")
    found = fields[name]
    if found is None:
        return ""
    if isinstance(found, datetime) and not spec:
        return found.isoformat()
    return format(found, spec)


def _numbers(spec: str) -> list[str]:
    return "".join(c if c.isascii() and c.isdigit() else " " for c in spec).split()
