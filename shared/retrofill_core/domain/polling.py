"""The time of the next check of a shard's due rows by its owner. Pure."""

from __future__ import annotations

from datetime import datetime

# Hints may be lost, so the index is probed at least this often.
POLL_SECONDS = 60.0
# Another transaction holds the lock of a due row.
LOCKED_SECONDS = 0.05
# Timers may fire early. The database's clock decides, so waking slightly late only saves a check.
MARGIN_SECONDS = 0.001


def seconds_until(due_at: datetime | None, now: datetime) -> float:
    """Seconds until the next check if the earliest row is due at ``due_at`` (``None``: no row)."""
    if due_at is None:
        return POLL_SECONDS
    left = (due_at - now).total_seconds()
    return LOCKED_SECONDS if left <= 0 else min(left + MARGIN_SECONDS, POLL_SECONDS)
