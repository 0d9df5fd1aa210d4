"""``retrofill hosts``: where attempts are executed, and why drivers do not start."""

from __future__ import annotations

from typing import Any

import psycopg
import typer
from sqlalchemy import RowMapping
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import UserError
from retrofill_core.settings import NotConfigured
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import moment, print_json, print_table
from retrofill_tools.client import read_hosts as reads
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.pools import summary


def register(app: typer.Typer) -> None:
    app.command("hosts")(list_)


def list_(as_json: AsJson = False) -> None:
    """List run-starters with their seats, and why drivers do not start."""
    with reading(load_settings()) as conn:
        rows = reads.hosts(conn)
    if as_json:
        print_json([dict(row) for row in rows])
    else:
        print_hosts(rows)


def known() -> tuple[list[RowMapping], list[dict[str, Any]]]:
    """The hosts and pools, none if Postgres does not answer."""
    try:
        with reading(load_settings()) as conn:
            there = reads.hosts(conn)
            return there, summary(there, reads.pools_of_pipelines(conn))
    except (SQLAlchemyError, psycopg.Error, NotConfigured, UserError):
        return [], []


def print_hosts(rows: list[RowMapping]) -> None:
    print_table(
        ["host", "pool", "seats", "started (UTC)", "its drivers"],
        [[row["name"], row["pool"], _seats(row), moment(row["started_at"]), row["note"] or ""] for row in rows],
        empty="no run-starter is alive",
        keep=["host", "pool", "seats"],
    )


def _seats(row: RowMapping) -> str:
    counted = ", ".join(f"{row[kind]} {kind}" for kind in ("busy", "warm", "cold") if row[kind])
    return counted if row["alive"] else f"{counted} (dead)"
