"""The state of data intervals over all backfills, as data."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping

from retrofill_tools.client import read_runs

FACTS = (
    "interval_start",
    "interval_end",
    "backfill_id",
    "triggered_by",
    "state",
    "attempt",
    "finished_at",
    "code_sha256",
    "restores",
    "undone_by",
)


def history(conn: Connection, pipeline_no: int, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """The finished runs of a pipeline whose intervals overlap ``[start, end)``, the latest last, with what each published."""
    return [_facts(row) for row in read_runs.runs_of_interval(conn, pipeline_no, start, end)]


def _facts(row: RowMapping) -> dict[str, Any]:
    return {
        "run_id": row["id"],
        **{name: row[name] for name in FACTS},
        # Its output may have been published by another attempt than the one that staged it.
        "attempt_id": row["accepted_attempt"] or row["attempt_id"],
        "published": (row["published"] or {}).get("outputs", []),
    }
