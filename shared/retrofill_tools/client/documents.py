"""Documents: frozen dataclasses whose fields are the keys of what ``--json`` prints and the console's API answers."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from typing import Any


def plain(value: Any) -> Any:
    """What JSON has no type for: documents, dates and moments in ISO 8601, anything else as text."""
    if is_dataclass(value):
        return {name: getattr(value, name) for name in names(value)}
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def encoded(document: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(document, default=plain, ensure_ascii=False, separators=(",", ":")).encode()


def names(kind: Any) -> list[str]:
    """The fields of a document, in their order: the columns that its query selects."""
    return [each.name for each in fields(kind)]
