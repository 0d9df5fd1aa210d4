"""Estimates as data: the end of a backfill, and what a new one would take."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from retrofill_core.domain.estimate import Estimate, Left, estimate
from retrofill_core.store.clock import database_now
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.progress import history
from retrofill_tools.client.read_hosts import serving

NO_HISTORY = "no history: no attempt of this pipeline has ended"


def as_json(found: Estimate | None) -> dict[str, Any] | None:
    """The estimate as data, in seconds from now."""
    if found is None:
        return None
    names = ("seconds", "low", "high", "runs_per_second")
    return {name: round(getattr(found, name), 3) for name in names}


def preview(conn: Connection, stored: StoredPipeline, runs: int, max_active_runs: int | None) -> dict[str, Any]:
    """How long ``runs`` would take, and what they would cost, from the pipeline's last attempts.

    Assumes that drivers are free: as many as may be live at once, of those there are.
    """
    definition = stored.definition
    past = history(conn, stored.no, database_now(conn))
    submits = definition.executor == "spark-submit"
    there = serving(conn, definition.pool)
    seats = sum(host["busy"] + host["warm"] + (host["cold"] if submits else 0) for host in there)
    at_once = min(max_active_runs or definition.max_active_runs, definition.max_active_runs)
    drivers = min(at_once, seats or at_once)
    found = estimate(past.took, Left(runs, (), 0.0, past.ranges), drivers)
    if found is None:
        return {"estimate": None, "core_hours": None, "why": NO_HISTORY}
    measured = sum(each.runs for each in past.took)
    days = max(1, round(past.took[-1].began / 86_400))
    of = past.core_seconds_per_run
    return {
        "estimate": as_json(found),
        "core_hours": None if of is None else round(of * runs / 3600, 3),
        "why": f"from {measured:,} runs of the last {'day' if days == 1 else f'{days:,} days'}",
    }
