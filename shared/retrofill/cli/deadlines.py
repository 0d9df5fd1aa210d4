"""``retrofill deadlines``: which moments are watched, and what became of them."""

from __future__ import annotations

from typing import Annotated

import typer

from retrofill.cli import reads
from retrofill.cli.connect import load_settings, reading
from retrofill.cli.options import AsJson, Limit, PipelineFilter
from retrofill.cli.output import print_json, print_table
from retrofill.domain.deadline import DeadlineState

group = typer.Typer(name="deadlines", help="Deadlines of runs.", no_args_is_help=True)
COLUMNS = ("id", "alert", "pipeline", "backfill_id", "run_id", "reference", "due_at", "state", "reason", "decided_at")


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group)


@group.command("list")
def list_(
    state: Annotated[DeadlineState | None, typer.Option(help="Only those in this state.")] = None,
    pipeline: PipelineFilter = None,
    backfill: Annotated[str | None, typer.Option(metavar="ID", help="Only of this backfill.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List deadlines, the latest moment first."""
    with reading(load_settings()) as conn:
        rows = reads.deadlines(conn, {"state": state, "pipeline": pipeline, "backfill_id": backfill}, limit)
    if as_json:
        more = ("callback", "kwargs", "interval_start", "run_state")
        return print_json([{name: row[name] for name in (*COLUMNS, *more)} for row in rows])
    return print_table(
        ["id", "alert", "pipeline", "interval", "due (UTC)", "state", "why"],
        [
            [str(r["id"]), r["alert"], r["pipeline"], r["interval_start"], r["due_at"], r["state"], r["reason"] or ""]
            for r in rows
        ],
        empty="no deadlines",
        keep=["id", "state"],
    )
