"""Rows as the store returns them, with what a test does not say as it is at first."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.dialects.postgresql import Range

from retrofill_core.store.deadlines import Deadline
from retrofill_core.store.rows import Attempt, Backfill, Run
from retrofill_tools.client import backfills
from retrofill_tools.client.pipelines import StoredDefinition

NOW = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def a_run(**given: Any) -> Run:
    """A queued run, by default of a day of its own: the one of its position."""
    position = given.get("position", 0)
    start = given.get("interval_start", NOW + position * DAY)
    about = {"id": position + 1, "backfill_id": "b", "pipeline_no": 1, "position": position, "state": "queued"}
    interval = {"interval_start": start, "interval_end": start + DAY}
    counts = {"attempt": 0, "lost_attempts": 0, "losses": {}, "publication": 0, "review": 0}
    return Run(**_unset(Run) | about | interval | counts | given)


def an_attempt(**given: Any) -> Attempt:
    """A live attempt that has begun."""
    about = {"id": 1, "backfill_id": "b", "pipeline_no": 1, "mode": "each", "runs": 1, "state": "running"}
    lease = {"lease_until": NOW, "lease_seconds": 30.0, "cancel_requested": False, "release_requested": False}
    return Attempt(**_unset(Attempt) | about | lease | {"code": {}, "began_at": NOW} | given)


def a_backfill(**given: Any) -> Backfill:
    """A running backfill."""
    return Backfill(**_unset(Backfill) | _of_a_backfill(given))


def a_stored_backfill(**given: Any) -> backfills.Backfill:
    """The same as the client reads it."""
    stored = {"reprocess_behavior": "none", "run_backwards": False, "definition": StoredDefinition({})}
    return backfills.Backfill(**_unset(backfills.Backfill) | stored | _of_a_backfill(given))


def _of_a_backfill(given: dict[str, Any]) -> dict[str, Any]:
    about = {"id": "b", "pipeline_no": 1, "pipeline": "p", "state": "running", "covers": Range(NOW, NOW + DAY)}
    asked = {"runs": 1, "max_active_runs": 1, "on_run_failure": "continue", "conf": {}, "requested_at": NOW}
    other = {"code_follows": False, "failed_before": 0, "review": False, "approvals": 0, "forced": False}
    return about | asked | other | given


def a_deadline(**given: Any) -> Deadline:
    """An armed deadline of a running run."""
    about = {"id": 1, "shard": 0, "alert": "slow", "pipeline": "p", "backfill_id": "b", "run_id": 3, "due_at": NOW}
    alert = {"reference": "RUN_QUEUED_AT", "interval_seconds": 60.0, "fire_on_failure": False, "kwargs": {}}
    call = {"callback": "page", "callback_kind": "function", "callback_options": {"at_most_once": False}}
    run = {"run_state": "running", "run_attempt": 1, "superseded": False}
    return Deadline(**_unset(Deadline) | about | alert | call | run | given)


def _unset(kind: type[Any]) -> dict[str, Any]:
    return dict.fromkeys(kind.__dataclass_fields__)
