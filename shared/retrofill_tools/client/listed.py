"""Lists as data: what ``--json`` prints for the rows of ``retrofill_tools.client.read``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.run import RunState
from retrofill_core.store.clock import database_now
from retrofill_core.store.progress import counts, estimates
from retrofill_tools.client.backfill_facts import batch_size
from retrofill_tools.client.estimates import as_json
from retrofill_tools.client.read import Rows, planned

BACKFILL = (
    *("id", "pipeline", "state", "runs", "ended_runs", "requested_at", "ended_at", "triggered_by"),
    "max_active_runs",
)
RUN = (
    *("id", "interval_start", "interval_end", "state", "attempt", "started_at", "finished_at"),
    *("cancel_requested_at", "superseded_by"),
)
DEADLINE = (
    *("id", "alert", "pipeline", "backfill_id", "run_id", "task", "reference", "interval_seconds", "due_at"),
    *("state", "reason", "decided_at", "recovered_at", "digest_id", "callback", "kwargs", "interval_start"),
    "run_state",
)
CALLBACK = (
    *("deadline_id", "name", "kind", "kwargs", "state", "attempts", "runners_lost", "next_try_at", "last_error"),
    *("finished_at", "occasion", "alert", "pipeline", "backfill_id", "run_id"),
)
DEFINITION = ("schedule", "timezone", "start", "end", "max_active_runs")
Document = dict[str, Any]
Found = Iterable[Mapping[Any, Any]]


def backfills(conn: Connection, rows: Rows) -> list[Document]:
    """Backfills with the number of their runs ``by_state``, and when the running ones will probably end."""
    # Those that succeeded may be many, with many runs: they need not be counted.
    counted = counts(conn, [row["id"] for row in rows if row["state"] != BackfillState.SUCCEEDED])
    expected = estimates(conn, [planned(row) for row in rows], counted, database_now(conn))
    return [
        {
            **_of(BACKFILL, row),
            "range_start": row["covers"].lower,
            "range_end": row["covers"].upper,
            "timezone": row["definition"].get("timezone", "UTC"),
            "by_state": counted.get(row["id"], {str(RunState.SUCCEEDED): row["runs"]}),
            "estimate": as_json(expected.get(row["id"])),
        }
        for row in rows
    ]


def runs(rows: Found) -> list[Document]:
    return [_of(RUN, row) for row in rows]


def deadlines(rows: Found) -> list[Document]:
    return [_of(DEADLINE, row) for row in rows]


def callbacks(rows: Found) -> list[Document]:
    return [_of(CALLBACK, row) for row in rows]


def pipelines(rows: Found) -> list[Document]:
    """Pipelines with the names of their tasks."""
    return [
        {
            "name": row["name"],
            **_of(DEFINITION, row["definition"]),
            "batch_size": batch_size(row["definition"]),
            "batch_mode": row["definition"].get("batch_mode", "each"),
            "pool": row["definition"].get("pool", DEFAULT_POOL),
            "tasks": [task["name"] for task in row["definition"]["tasks"]],
            "active_backfills": row["active_backfills"],
            "applied_at": row["applied_at"],
        }
        for row in rows
    ]


def _of(names: tuple[str, ...], row: Mapping[Any, Any]) -> Document:
    return {name: row[name] for name in names}
