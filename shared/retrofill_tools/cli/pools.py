"""``retrofill pools``: who serves which pool."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
import typer
from sqlalchemy.exc import SQLAlchemyError

from retrofill_core.settings import NotConfigured, Settings
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import harmless, print_json, print_table
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.hosts import find_hosts, pools_of, pools_of_pipelines, why_unserved

group = typer.Typer(name="pools", help="Show pools of drivers.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(group)


@group.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the pools that are served or used, with hosts, seats and versions."""
    with reading(load_settings()) as conn:
        found = pools_of(find_hosts(conn), pools_of_pipelines(conn))
    if as_json:
        return print_json(found)
    return print_table(
        ["pool", "hosts", "slots", "free", "Python", "Spark", "pipelines"],
        [
            [
                each.pool,
                each.hosts or "nobody serves it",
                *(each.slots, each.free),
                *(", ".join(versions) or "-" for versions in (each.python, each.spark)),
                each.pipelines,
            ]
            for each in found
        ],
        empty="no run-starter is alive, and no pipeline is applied",
        keep=["pool", "hosts", "slots", "free"],
    )


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
