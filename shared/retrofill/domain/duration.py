"""Durations as users write them, such as ``"5m"``."""

from __future__ import annotations

import re
from datetime import timedelta

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DURATION = re.compile(rf"(\d+(?:\.\d+)?)([{''.join(UNITS)}])")


def seconds_of(value: str | timedelta) -> float:
    """``90s``, ``5m``, ``1.5h`` or ``2d``, or a timedelta, as seconds. Raises ``ValueError``."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    found = DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"invalid duration {value!r}: write it like 90s, 5m, 1.5h or 2d")
    return float(found[1]) * UNITS[found[2]]
