"""Data intervals in the pipeline's time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache

from retrofill.protocol.launch import Launch, LaunchedRun, Piece


@dataclass(frozen=True)
class Interval:
    """The data interval ``[start, end)``, in the pipeline's time zone."""

    start: datetime
    end: datetime


def interval_of(launch: Launch, run: LaunchedRun | Piece) -> Interval:
    """The interval of a run, or of a piece as a whole, in the pipeline's time zone."""
    zone = zone_of(launch.pipeline.timezone)
    start, end = (zone or timezone(timedelta(seconds=offset)) for offset in run.utc_offsets)
    return Interval(run.interval_start.astimezone(start), run.interval_end.astimezone(end))


@lru_cache(maxsize=None)
def zone_of(name: str) -> tzinfo | None:
    """The time zone; ``None`` if this Python has none (before 3.9), or no data about it."""
    if name == "UTC":
        return timezone.utc
    try:
        from zoneinfo import ZoneInfo

        return ZoneInfo(name)
    except (ImportError, KeyError, OSError, ValueError):
        return None
