"""Pools: the hosts that serve each, and why its runs wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping

from retrofill.errors import stored_line
from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.run import RunState
from retrofill_tools.client.read import first_put_off, planned
from retrofill_tools.client.read_hosts import hosts, kept_waiting, serving

NOBODY = "no run-starter is alive: start one (retrofill up, retrofill service run-starter)"


def summary(there: Iterable[RowMapping], pipelines: Mapping[str, int]) -> list[dict[str, Any]]:
    """Each pool that a live host serves or a pipeline uses, by name.

    ``slots``: how many drivers its hosts can have; ``free``: those that could take an attempt now.
    """
    alive = [each for each in there if each["alive"]]
    found = []
    for pool in sorted({each["pool"] for each in alive} | pipelines.keys()):
        mine = [each for each in alive if each["pool"] == pool]
        found.append(
            {
                "pool": pool,
                "hosts": len(mine),
                "slots": sum(each["busy"] + each["warm"] + each["cold"] for each in mine),
                "free": sum(each["warm"] for each in mine),
                **{kind: sorted({each[kind] for each in mine if each[kind]}) for kind in ("python", "spark")},
                "pipelines": pipelines.get(pool, 0),
            }
        )
    return found


def unserved(pool: str) -> str:
    """Why runs of a pool wait that nobody serves, and what to do."""
    return (
        f"no run-starter serves the pool {pool}: start one that does (RETROFILL_POOLS_FILE, RETROFILL_SERVES), or apply "
        "the pipeline with another pool"
    )


def without_drivers(conn: Connection, row: RowMapping, by_state: Mapping[str, int]) -> str | None:
    """Why the queued runs of a backfill do not start, or accepted ones are not published: its pool has no driver anywhere."""
    queued = row["state"] == BackfillState.RUNNING and by_state.get(RunState.QUEUED)
    if row["ended_at"] is not None or not (queued or _publishable(row, by_state)):
        return None
    alive = [each for each in hosts(conn) if each["alive"]]
    if not alive:
        return NOBODY
    pool = row["definition"].get("pool", DEFAULT_POOL)
    there = [each for each in alive if each["pool"] == pool]
    if not there:
        return unserved(pool)
    submits = row["definition"].get("executor") == "spark-submit"
    if any(each["busy"] or (each["submits"] if submits else each["warm"]) for each in there):
        return None
    why = "; ".join(f"{each['name']}: {each['note'] or 'its drivers are starting'}" for each in there[:3])
    return f"no driver is ready: {why}"


def _publishable(row: RowMapping, by_state: Mapping[str, int]) -> bool:
    """Whether accepted runs need a publisher now."""
    return bool(by_state.get(RunState.STAGED)) and planned(row).publishes_below > 0


def unpublished(conn: Connection, row: RowMapping, by_state: Mapping[str, int]) -> str | None:
    """Why accepted runs are not published yet, though publishers have tried."""
    first = first_put_off(conn, row["id"]) if _publishable(row, by_state) else None
    if first is None:
        return None
    after = first["publish_after"]
    when = "" if after is None else f", again after {after:%Y-%m-%d %H:%M:%S} UTC"
    return f"run {first['id']} is accepted and not published yet{when}: {stored_line(first['publish_error'])}"


def not_begun(conn: Connection, id: str) -> str | None:
    """Why an attempt of a backfill has a host but no driver yet, if the host says so."""
    waiting = kept_waiting(conn, id)
    return f"attempt {waiting[0]['id']} waits at {waiting[0]['name']}: {waiting[0]['note']}" if waiting else None


def why_unserved(conn: Connection, pool: str) -> str | None:
    """Why runs of the pool would wait now, if nobody serves it."""
    return None if serving(conn, pool) else unserved(pool)
