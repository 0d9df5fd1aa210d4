"""``retrofill hosts``: where attempts are executed, and why drivers do not start."""

from __future__ import annotations

import psycopg
import typer
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import UserError
from retrofill_core.settings import NotConfigured
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import moment, print_json, print_table
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.hosts import Host, Pool, find_hosts, pools_of, pools_of_pipelines


def register(app: typer.Typer) -> None:
    app.command("hosts")(list_)


def list_(as_json: AsJson = False) -> None:
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
            return there, pools_of(there, pools_of_pipelines(conn))
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
