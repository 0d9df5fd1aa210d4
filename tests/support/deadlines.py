"""A deadline as the watcher reads it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from retrofill_core.store.deadlines import Deadline

_NOTHING: dict[str, Any] = dict.fromkeys(Deadline.__dataclass_fields__)
_ONE = _NOTHING | {
    "id": 1,
    "shard": 0,
    "alert": "slow",
    "pipeline": "p",
    "backfill_id": "b",
    "run_id": 3,
    "reference": "RUN_QUEUED_AT",
    "interval_seconds": 60.0,
    "due_at": datetime(2024, 3, 1, tzinfo=UTC),
    "fire_on_failure": False,
    "callback": "page",
    "callback_kind": "function",
    "callback_options": {"at_most_once": False},
    "kwargs": {},
    "run_state": "running",
    "run_attempt": 1,
    "superseded": False,
}


def deadline(**more: Any) -> Deadline:
    """The deadline of a running run, but for ``more``."""
    return Deadline(**_ONE | more)
