"""``retrofill hosts`` and ``retrofill pools``: where attempts are executed, who serves which pool, and why drivers do not start."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
import typer
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import UserError
from retrofill_core.settings import NotConfigured, Settings
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import moment, print_json, print_table, warn
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.hosts import (
    Host,
    Pool,
    find_hosts,
    find_pools,
    why_unserved,
)

pools = typer.Typer(name="pools", help="Show pools of drivers.", no_args_is_help=True)


def list_hosts(as_json: AsJson = False) -> None:
    """List run-starters with their seats, and why drivers do not start."""
    with reading(load_settings()) as conn:
        rows = find_hosts(conn)
    if as_json:
        print_json(rows)
    else:
        print_hosts(rows)


def known() -> tuple[list[Host], list[Pool]]:
    """The hosts and pools, none if Postgres does not answer."""
    try:
        with reading(load_settings()) as conn:
            there = find_hosts(conn)
            return there, find_pools(conn, there)
    except (SQLAlchemyError, psycopg.Error, NotConfigured, UserError):
        return [], []


def print_hosts(rows: list[Host]) -> None:
    print_table(
        ["host", "pool", "seats", "started (UTC)", "its drivers"],
        [[row.name, row.pool, _seats(row), moment(row.started_at), row.note or ""] for row in rows],
        empty="no run-starter is alive",
        keep=["host", "pool", "seats"],
    )


def _seats(of: Host) -> str:
    seats = {"busy": of.busy, "warm": of.warm, "cold": of.cold}
    counted = ", ".join(f"{number} {kind}" for kind, number in seats.items() if number)
    return counted if of.alive else f"{counted} (dead)"


@pools.command("list")
def list_pools(as_json: AsJson = False) -> None:
    """List the pools that are served or used, with hosts, seats and versions."""
    with reading(load_settings()) as conn:
        found = find_pools(conn, find_hosts(conn))
    if as_json:
        return print_json(found)
    return print_table(
        ["pool", "hosts", "slots", "free", "Python", "Spark", "pipelines", "Spark lost"],
        [
            [
                each.pool,
                each.hosts or "nobody serves it",
                *(each.slots, each.free),
                *(", ".join(versions) or "-" for versions in (each.python, each.spark)),
                each.pipelines,
                f"in {each.spark_lost} of {each.of_minutes} minutes" if each.spark_lost else "-",
            ]
            for each in found
        ],
        empty="no run-starter is alive, and no pipeline is applied",
        keep=["pool", "hosts", "slots", "free"],
    )


def warn_of_unserved(settings: Settings, pools: Iterable[str]) -> None:
    """Warn of pools that nobody serves now, if Postgres tells: who applies may have no access to it."""
    try:
        with reading(settings) as conn:
            hosts = find_hosts(conn)
            warn([why for pool in pools if (why := why_unserved(hosts, pool)) is not None])
    except (SQLAlchemyError, psycopg.Error, NotConfigured):
        return
