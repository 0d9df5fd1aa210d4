"""``retrofill pools``: who serves which pool, and why a pool's runs wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
import typer
from sqlalchemy import Connection, RowMapping
from sqlalchemy.exc import SQLAlchemyError

from retrofill.cli.options import AsJson
from retrofill.cli.output import harmless, print_json, print_table
from retrofill.client.connect import load_settings, reading
from retrofill.client.read_hosts import hosts, kept_waiting, pools_of_pipelines, serving
from retrofill.domain.backfill import BackfillState
from retrofill.domain.names import DEFAULT_POOL
from retrofill.domain.run import RunState
from retrofill.settings import NotConfigured, Settings

group = typer.Typer(name="pools", help="Show pools of drivers.", no_args_is_help=True)
NOBODY = "no run-starter is alive: start one (retrofill up, retrofill service run-starter)"


def register(app: typer.Typer) -> None:
    app.add_typer(group)


@group.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the pools that are served or used, with hosts, seats and versions."""
    with reading(load_settings()) as conn:
        found = summary(hosts(conn), pools_of_pipelines(conn))
    if as_json:
        return print_json(found)
    return print_table(
        ["pool", "hosts", "slots", "free", "Python", "Spark", "pipelines"],
        [
            [
                each["pool"],
                each["hosts"] or "nobody serves it",
                *(each["slots"], each["free"]),
                *(", ".join(each[kind]) or "-" for kind in ("python", "spark")),
                each["pipelines"],
            ]
            for each in found
        ],
        empty="no run-starter is alive, and no pipeline is applied",
        keep=["pool", "hosts", "slots", "free"],
    )


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
    """Why the queued runs of a backfill do not start: no driver of its pool can be had anywhere."""
    if row["state"] != BackfillState.RUNNING or not by_state.get(RunState.QUEUED):
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


def not_begun(conn: Connection, id: str) -> str | None:
    """Why an attempt of a backfill has a host but no driver yet, if the host says so."""
    waiting = kept_waiting(conn, id)
    return f"attempt {waiting[0]['id']} waits at {waiting[0]['name']}: {waiting[0]['note']}" if waiting else None


def why_unserved(conn: Connection, pool: str) -> str | None:
    """Why runs of the pool would wait now, if nobody serves it."""
    return None if serving(conn, pool) else unserved(pool)


def warn(problems: Iterable[str]) -> None:
    """Print each once on stderr, where scripts do not read."""
    for problem in dict.fromkeys(problems):
        typer.echo(f"retrofill: {harmless(problem)}", err=True)


def warn_of_unserved(settings: Settings, pools: Iterable[str]) -> None:
    """Warn of pools that nobody serves now, if Postgres tells: who applies may have no access to it."""
    try:
        with reading(settings) as conn:
            warn([why for pool in pools if (why := why_unserved(conn, pool)) is not None])
    except (SQLAlchemyError, psycopg.Error, NotConfigured):
        return
