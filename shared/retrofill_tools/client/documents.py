"""Documents as JSON: what ``--json`` prints and the console's API answers."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any


def plain(value: Any) -> Any:
    """What JSON has no type for: dates and moments in ISO 8601, anything else as text."""
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def encoded(document: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(document, default=plain, ensure_ascii=False, separators=(",", ":")).encode()
