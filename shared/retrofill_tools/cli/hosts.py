"""``retrofill hosts`` and ``retrofill pools``: where attempts are executed, who serves which pool, and why drivers do not start."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
import typer
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import UserError
from retrofill_core.settings import NotConfigured, Settings
from retrofill_tools.cli.options import Form, takes_form
from retrofill_tools.cli.output import Column, print_list, warn
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.hosts import (
    Host,
    Pool,
    find_hosts,
    find_pools,
    why_unserved,
)

pools = typer.Typer(name="pools", help="List pools of drivers.", no_args_is_help=True)


HOSTS = [
    Column("host", lambda each: each.name, keep=True),
    Column("pool", lambda each: each.pool, keep=True),
    Column("seats", lambda each: _seats(each), keep=True),
    Column("started (UTC)", lambda each: each.started_at),
    Column("its drivers", lambda each: each.note or ""),
]


@takes_form
def list_hosts(*, form: Form) -> None:
    """List run-starters with their seats, and why drivers do not start."""
    with reading(load_settings()) as conn:
        rows = find_hosts(conn)
    print_hosts(rows, form)


def known() -> tuple[list[Host], list[Pool]]:
    """The hosts and pools, none if Postgres does not answer."""
    try:
        with reading(load_settings()) as conn:
            there = find_hosts(conn)
            return there, find_pools(conn, there)
    except (SQLAlchemyError, psycopg.Error, NotConfigured, UserError):
        return [], []


def print_hosts(rows: list[Host], form: Form = Form.TABLE) -> None:
    print_list(form, rows, HOSTS, name=lambda each: each.name, empty="no run-starter is alive")


def _seats(of: Host) -> str:
    seats = {"busy": of.busy, "warm": of.warm, "cold": of.cold}
    counted = ", ".join(f"{number} {kind}" for kind, number in seats.items() if number)
    return counted if of.alive else f"{counted} (dead)"


@pools.command("list")
@takes_form
def list_pools(*, form: Form) -> None:
    """List the pools that are served or used, with hosts, seats and versions."""
    with reading(load_settings()) as conn:
        found = find_pools(conn, find_hosts(conn))
    columns = [
        Column("pool", lambda each: each.pool, keep=True),
        Column("hosts", lambda each: each.hosts or "nobody serves it", keep=True),
        Column("slots", lambda each: each.slots, keep=True),
        Column("free", lambda each: each.free, keep=True),
        Column("Python", lambda each: ", ".join(each.python) or "-"),
        Column("Spark", lambda each: ", ".join(each.spark) or "-"),
        Column("pipelines", lambda each: each.pipelines),
        Column("Spark lost", _spark_lost),
    ]
    empty = "no run-starter is alive, and no pipeline is applied"
    print_list(form, found, columns, name=lambda each: each.pool, empty=empty)


def _spark_lost(of: Pool) -> str:
    return f"in {of.spark_lost} of {of.of_minutes} minutes" if of.spark_lost else "-"


def warn_of_unserved(settings: Settings, pools: Iterable[str]) -> None:
    """Warn of pools that nobody serves now, if Postgres tells: who applies may have no access to it."""
    try:
        with reading(settings) as conn:
            hosts = find_hosts(conn)
            warn([why for pool in pools if (why := why_unserved(hosts, pool)) is not None])
    except (SQLAlchemyError, psycopg.Error, NotConfigured):
        return
