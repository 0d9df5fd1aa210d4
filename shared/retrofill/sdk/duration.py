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


def written(seconds: float) -> str:
    """Seconds in the largest unit that divides them, as users write them: ``10m`` or ``2.5s``."""
    unit = next((unit for unit in reversed(UNITS) if seconds % UNITS[unit] == 0), "s")
    return f"{seconds / UNITS[unit]:g}{unit}"


def timed_out(what: str, seconds: float, times: int, limit: str) -> str:
    """That ``what`` took longer than its ``limit``, which a range has once for each of its runs."""
    each = f" ({written(seconds)} for each of {times} runs)" if times > 1 else ""
    return f"{what} timed out after {written(seconds * times)}{each}: raise {limit}, or find out what takes so long"
