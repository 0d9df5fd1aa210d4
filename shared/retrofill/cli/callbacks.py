"""``retrofill callbacks``: what was called about missed deadlines, and how that went."""

from __future__ import annotations

from typing import Annotated

import typer

from retrofill.cli import reads
from retrofill.cli.connect import load_settings, reading
from retrofill.cli.options import AsJson, Limit, PipelineFilter
from retrofill.cli.output import print_json, print_table
from retrofill.domain.callback import CallbackState

group = typer.Typer(name="callbacks", help="Callbacks of missed deadlines.", no_args_is_help=True)
COLUMNS = ("deadline_id", "name", "kwargs", "state", "attempts", "next_try_at", "last_error", "finished_at")
OF_THE_DEADLINE = ("alert", "pipeline", "backfill_id", "run_id")


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group)


@group.command("list")
def list_(
    state: Annotated[CallbackState | None, typer.Option(help="Only those in this state.")] = None,
    pipeline: PipelineFilter = None,
    backfill: Annotated[str | None, typer.Option(metavar="ID", help="Only of this backfill.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List callbacks, those of the newest deadlines first."""
    with reading(load_settings()) as conn:
        rows = reads.callbacks(conn, {"state": state, "pipeline": pipeline, "backfill_id": backfill}, limit)
    if as_json:
        return print_json([{name: row[name] for name in (*COLUMNS, *OF_THE_DEADLINE)} for row in rows])
    return print_table(
        ["deadline", "callback", "pipeline", "alert", "state", "calls", "last error"],
        [
            [
                str(row["deadline_id"]),
                row["name"],
                row["pipeline"],
                row["alert"],
                row["state"],
                row["attempts"],
                " ".join((row["last_error"] or "").split())[:200],
            ]
            for row in rows
        ],
        empty="no callbacks",
        keep=["deadline", "state", "calls"],
    )
