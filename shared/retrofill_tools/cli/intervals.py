"""``retrofill intervals show``: the history of a data interval, over all backfills."""

from __future__ import annotations

from typing import Annotated

import typer

from retrofill_core.domain.run import RunState
from retrofill_tools.cli.completion import pipeline_names
from retrofill_tools.cli.finding import bounds
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import moment, print_json, print_text
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.intervals import FinishedRun, history
from retrofill_tools.client.pipelines import find_pipeline

group = typer.Typer(name="intervals", help="Show what became of a data interval.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(group)


@group.command()
def show(
    pipeline: Annotated[
        str, typer.Argument(metavar="PIPELINE", help="Name of an applied pipeline.", autocompletion=pipeline_names)
    ],
    day: Annotated[
        str,
        typer.Argument(
            metavar="DATE", help="A logical date, or a day: all intervals that overlap it, of any schedule."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show who processed an interval when, with which code, and what that published."""
    with reading(load_settings()) as conn:
        stored = find_pipeline(conn, pipeline)
        zone = stored.definition.timezone
        rows = history(conn, stored.no, *bounds(day, zone))
    if as_json:
        return print_json(rows)
    if not rows:
        return print_text(f"no run of {pipeline} has processed {day}")
    for row in rows:
        _print(row, zone)
    return None


def _print(row: FinishedRun, zone: str) -> None:
    by = f" by {row.triggered_by}" if row.triggered_by else ""
    code = (row.code_sha256 or "in place")[:12]
    interval = f"{moment(row.interval_start, zone)} – {moment(row.interval_end, zone)}"
    print_text(f"{interval}: run {row.run_id} of backfill {row.backfill_id}{by}")
    print_text(f"  {row.state} {moment(row.finished_at)} (UTC), attempt {row.attempt_id}, code {code}")
    if row.restores:
        did = "restored" if row.state == RunState.SUCCEEDED else "was to restore"
        print_text(f"  {did} what run {row.restores} had replaced")
    if row.undone_by:
        print_text(f"  undone by run {row.undone_by}")
    for output in row.published:
        version = f", version {output['version']}" if "version" in output else ""
        print_text(f"  published {output['name']}{version}")
