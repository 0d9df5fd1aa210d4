"""``retrofill runs`` and ``retrofill intervals``: list, show, retry and cancel single runs, and the history of an interval."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from retrofill.errors import UserError, WrongUsage
from retrofill_core.contract.backfills import (
    BackfillCommandRejected,
    RunCancelAccepted,
    RunCancelRequested,
    RunRetryRequested,
    RunsRetried,
)
from retrofill_core.contract.base import MAX_INT, Message
from retrofill_core.contract.explain import explain
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.run import RunState
from retrofill_tools.cli import one_run
from retrofill_tools.cli.arguments import Dates, read_bound, read_dates
from retrofill_tools.cli.one_run import bounds
from retrofill_tools.cli.options import ANSWER_SECONDS, AsJson, Limit, TimeLimit, backfill_ids, pipeline_names
from retrofill_tools.cli.output import moment, print_json, print_table, print_text
from retrofill_tools.client.backfills import find_backfill
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.intervals import FinishedRun, history
from retrofill_tools.client.kafka import ask
from retrofill_tools.client.pipelines import find_pipeline
from retrofill_tools.client.runs import find_runs

group = typer.Typer(
    name="runs", help="List, show, retry and cancel single runs, and read their logs.", no_args_is_help=True
)
Backfill = Annotated[str, typer.Argument(metavar="BACKFILL", help="The backfill's id.", autocompletion=backfill_ids)]
intervals = typer.Typer(name="intervals", help="Show what became of a data interval.", no_args_is_help=True)


@group.command("list")
def list_(
    backfill: Backfill,
    state: Annotated[list[RunState] | None, typer.Option(help="Only runs in this state; repeatable.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the runs of a backfill, in the order of their intervals."""
    with reading(load_settings()) as conn:
        zone = find_backfill(conn, backfill).definition.timezone
        found = find_runs(conn, backfill, state or [], limit)
    if as_json:
        return print_json(found)
    return print_table(
        ["run", f"interval ({zone})", "state", "begun", "started (UTC)", "finished (UTC)"],
        [
            [
                str(each.id),
                moment(each.interval_start, zone),
                each.state if each.superseded_by is None else f"{each.state}, retried",
                each.attempt,
                each.started_at,
                each.finished_at,
            ]
            for each in found
        ],
        empty="no runs",
        keep=["run", "state", "begun"],
    )


@group.command()
def cancel(
    backfill: Backfill,
    interval: Annotated[
        list[str] | None,
        typer.Option(metavar="DATE", help="A logical date; a day means all intervals that start on it. Repeatable."),
    ] = None,
    run: Annotated[
        list[int] | None, typer.Option(metavar="ID", min=1, max=MAX_INT, help="The id of a run. Repeatable.")
    ] = None,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Cancel some runs: all that are named, or none. The backfill's other runs go on."""
    if not backfill.strip():
        raise WrongUsage("the backfill's id is empty")
    if not (interval or run):
        raise WrongUsage("name the runs: --interval DATE or --run ID ('retrofill runs list' shows them)")
    request = _request(interval or [], run or [])
    answer = _answer(backfill, request, timeout, as_json)
    if isinstance(answer, RunCancelAccepted) and not as_json:
        count = len(answer.run_ids)
        print_text(f"backfill {backfill}: cancelling {count:,} {'run' if count == 1 else 'runs'}")


@group.command()
def retry(
    backfill: Backfill,
    dates: Dates = None,
    all_failed: Annotated[bool, typer.Option("--all", help="Retry all failed runs.")] = False,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Run failed runs of an active backfill again: all that are named, or none."""
    if not backfill.strip():
        raise WrongUsage("the backfill's id is empty")
    intervals = tuple(read_dates(dates))
    if all_failed == bool(intervals):
        raise WrongUsage("name the runs: either --dates DATE,… or --all ('retrofill runs list' shows them)")
    try:
        request = RunRetryRequested(all_failed=all_failed, intervals=intervals)
    except ValidationError as e:
        raise WrongUsage(explain(e)) from e
    answer = _answer(backfill, request, timeout, as_json)
    if isinstance(answer, RunsRetried) and not as_json:
        print_text(f"backfill {backfill}: retrying {answer.runs:,} {'run' if answer.runs == 1 else 'runs'}")


def _answer(backfill: str, request: Message, timeout: float, as_json: bool) -> Message:
    """Ask for it. Prints the reply if ``as_json``; raises ``UserError`` for a rejection."""
    answer = ask(load_settings(), Topic.BACKFILL_REQUESTS, backfill, request, timeout)
    if as_json:
        print_json(answer.model_dump(mode="json", exclude_none=True))
    if isinstance(answer, BackfillCommandRejected):
        raise UserError(answer.message)
    return answer


def _request(intervals: list[str], runs: list[int]) -> RunCancelRequested:
    bounds = tuple(read_bound("--interval", each) for each in intervals)
    try:
        return RunCancelRequested(intervals=bounds, run_ids=tuple(runs))
    except ValidationError as e:
        raise WrongUsage(explain(e)) from e


@intervals.command("show")
def show_interval(
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
        _print_interval(row, zone)
    return None


def _print_interval(row: FinishedRun, zone: str) -> None:
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


# Last in the help.
group.command()(one_run.show)
group.command()(one_run.logs)
