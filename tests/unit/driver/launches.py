"""Attempts as a host sends them to a driver."""

from __future__ import annotations

from typing import Any

from retrofill.protocol.launch import Launch


def sent(*runs: dict[str, Any], pipeline: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """As JSON: an attempt with the id 25 at these runs, of a pipeline with one task."""
    return {
        "backfill_id": "b",
        "attempt_id": 25,
        "mode": "each" if len(runs) == 1 else "range",
        "runs": [{"attempt": 1, **run} for run in runs],
        "pipeline": {
            "name": "p",
            "schedule": "@daily",
            "tasks": [{"name": "a"}],
            "code": {"file": "/p.py", "attribute": "p"},
            **(pipeline or {}),
        },
        "lease_seconds": 60,
        **more,
    }


def launch_of(*runs: dict[str, Any], **more: Any) -> Launch:
    return Launch.of(sent(*runs, **more))


def run_of(id: int, start: str, end: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "interval_start": start, "interval_end": end, **more}
