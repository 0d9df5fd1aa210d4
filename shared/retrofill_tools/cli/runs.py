"""``retrofill runs`` and ``retrofill intervals``: list, show, retry and cancel single runs, and the history of an interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, TypeVar

import typer

from retrofill.errors import UserError, WrongUsage
from retrofill.wording import plural
from retrofill_core.contract.backfills import (
    CANCELLING,
    MAX_NAMED,
    BackfillCommandRejected,
    RunCancelAccepted,
    RunCancelRequested,
    RunRetryRequested,
    RunsRetried,
)
from retrofill_core.contract.base import MAX_INT, Message
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.run import MACHINE, RunState
from retrofill_core.domain.schedule import Bound
from retrofill_tools.cli import one_run
from retrofill_tools.cli.arguments import Dates, read_dates
from retrofill_tools.cli.asking import Yes, confirm
from retrofill_tools.cli.backfills import retrying
from retrofill_tools.cli.one_run import bounds
from retrofill_tools.cli.options import (
    ANSWER_SECONDS,
    AsJson,
    Form,
    LatestCode,
    Limit,
    TimeLimit,
    backfill_ids,
    pipeline_names,
    takes_form,
)
from retrofill_tools.cli.output import Column, counts, instant, print_json, print_list, print_text, range_of, short_code
from retrofill_tools.client.backfills import find_backfill
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.intervals import FinishedRun, history
from retrofill_tools.client.kafka import ask
from retrofill_tools.client.pipelines import find_pipeline
from retrofill_tools.client.runs import RunSummary, find_runs

group = typer.Typer(
    name="runs", help="List, show, retry and cancel single runs, and read their logs.", no_args_is_help=True
)
Name = TypeVar("Name")
Backfill = Annotated[str, typer.Argument(metavar="BACKFILL", help="The backfill's id.", autocompletion=backfill_ids)]
intervals = typer.Typer(name="intervals", help="Show the history of a data interval.", no_args_is_help=True)


@group.command("list")
@takes_form
def list_(
    backfill: Backfill,
    state: Annotated[list[RunState] | None, typer.Option(help="Only runs in this state; repeatable.")] = None,
    limit: Limit = 50,
    *,
    form: Form,
) -> None:
    """List the runs of a backfill, in the order of their intervals."""
    with reading(load_settings()) as conn:
        zone = find_backfill(conn, backfill).definition.timezone
        found = find_runs(conn, backfill, state or [], limit)
    columns = [
        Column("run", lambda each: str(each.id), keep=True),
        Column(f"interval ({zone})", lambda each: range_of(each.interval_start, each.interval_end, zone)),
        Column("state", _state, keep=True),
        Column("begun", lambda each: each.attempt, keep=True),
        Column("started (UTC)", lambda each: each.started_at),
        Column("finished (UTC)", lambda each: each.finished_at),
        Column("cancel requested (UTC)", lambda each: each.cancel_requested_at, wide=True),
        Column("retried by", lambda each: each.superseded_by and str(each.superseded_by), wide=True),
    ]
    print_list(form, found, columns, name=lambda each: each.id, empty="no runs")


def _state(of: RunSummary) -> str:
    return of.state if of.superseded_by is None else f"{of.state}, retried"


@group.command()
def cancel(
    backfill: Backfill,
    dates: Dates = None,
    run: Annotated[
        list[int] | None, typer.Option(metavar="ID", min=1, max=MAX_INT, help="The id of a run. Repeatable.")
    ] = None,
    yes: Yes = False,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Cancel the named runs that have not ended. The backfill's other runs continue."""
    if not backfill.strip():
        raise WrongUsage("the backfill's id is empty")
    named = read_dates(dates)
    if not (named or run):
        raise WrongUsage("name the runs: --dates DATE,… or --run ID ('retrofill runs list' shows them)")
    confirm(f"cancel these runs of backfill {backfill}", yes=yes)
    answers = _cancelled(backfill, _requests(named, run or []), timeout)
    cancelled = answers[0].model_copy(
        update={
            "run_ids": tuple(id for each in answers for id in each.run_ids),
            "intervals": tuple(start for each in answers for start in each.intervals),
            "left": dict(sum((Counter(each.left) for each in answers), Counter())),
        }
    )
    if as_json:
        print_json(cancelled.model_dump(mode="json", exclude_none=True))
    count, others = len(cancelled.run_ids), _words(cancelled.left)
    if not count:
        raise UserError(f"backfill {backfill}: no run was canceled{others}")
    if not as_json:
        print_text(f"backfill {backfill}: canceling {plural(count, 'run')}{others}")


def _requests(dates: Sequence[Bound], runs: Sequence[int]) -> list[RunCancelRequested]:
    """As many as it takes: one names a bounded number of runs."""
    both = zip_longest(_chunks(dates), _chunks(runs), fillvalue=())
    return [RunCancelRequested(intervals=some, run_ids=ids) for some, ids in both]


def _chunks(named: Sequence[Name]) -> list[tuple[Name, ...]]:
    once = [*dict.fromkeys(named)]
    return [tuple(once[n : n + MAX_NAMED]) for n in range(0, len(once), MAX_NAMED)]


def _cancelled(backfill: str, requests: Sequence[RunCancelRequested], timeout: float) -> list[RunCancelAccepted]:
    """The replies. Raises ``UserError`` for a rejection; says how many runs are being cancelled nevertheless."""
    settings, found = load_settings(), list[RunCancelAccepted]()
    for request in requests:
        answer = ask(settings, Topic.BACKFILL_REQUESTS, backfill, request, timeout)
        if isinstance(answer, RunCancelAccepted):
            found.append(answer)
        elif isinstance(answer, BackfillCommandRejected):
            before = sum(len(each.run_ids) for each in found)
            raise UserError(answer.message + (f" (of those named before, {before:,} are canceled)" if before else ""))
    return found


def _words(left: Mapping[str, int]) -> str:
    """How many stay as they are, and why."""
    ended = {state: number for state, number in left.items() if state in MACHINE.terminal}
    accepted = sum(left.values()) - sum(ended.values()) - left.get(CANCELLING, 0)
    parts = (
        f"{sum(ended.values()):,} had already ended ({counts(ended)})" if ended else "",
        f"{left[CANCELLING]:,} already being canceled" if CANCELLING in left else "",
        f"the output of {accepted:,} was already accepted" if accepted else "",
    )
    return "".join(f"; {part}" for part in parts if part)


@group.command()
def retry(
    backfill: Backfill,
    dates: Dates = None,
    all_failed: Annotated[bool, typer.Option("--all", help="Retry all failed runs.")] = False,
    latest_code: LatestCode = False,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Retry failed runs of an active backfill: all named runs, or none.

    They use the code that the backfill was planned with, unless --latest-code is given.
    """
    if not backfill.strip():
        raise WrongUsage("the backfill's id is empty")
    intervals = tuple(read_dates(dates))
    if all_failed == bool(intervals):
        raise WrongUsage("name the runs: either --dates DATE,… or --all ('retrofill runs list' shows them)")
    if len(intervals) > MAX_NAMED:
        raise WrongUsage(
            f"--dates names {len(intervals):,} dates, and the limit is {MAX_NAMED}: name fewer, or use --all"
        )
    request = RunRetryRequested(all_failed=all_failed, intervals=intervals, latest_code=latest_code)
    answer = _answer(backfill, request, timeout, as_json)
    if isinstance(answer, RunsRetried) and not as_json:
        print_text(retrying(backfill, answer))


def _answer(backfill: str, request: Message, timeout: float, as_json: bool) -> Message:
    """Ask for it. Prints the reply if ``as_json``; raises ``UserError`` for a rejection."""
    answer = ask(load_settings(), Topic.BACKFILL_REQUESTS, backfill, request, timeout)
    if as_json:
        print_json(answer.model_dump(mode="json", exclude_none=True))
    if isinstance(answer, BackfillCommandRejected):
        raise UserError(answer.message)
    return answer


@intervals.command("show")
@takes_form
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
    *,
    form: Form,
) -> None:
    """Show who processed an interval when, with which code, and what that published."""
    with reading(load_settings()) as conn:
        stored = find_pipeline(conn, pipeline)
        zone = stored.definition.timezone
        rows = history(conn, stored.no, *bounds(day, zone))
    if form not in (Form.TABLE, Form.WIDE):
        return print_list(form, rows, [], name=lambda each: each.run_id, empty="")
    if not rows:
        return print_text(f"no run of {pipeline} has processed {day}")
    for row in rows:
        _print_interval(row, zone)
    return None


def _print_interval(row: FinishedRun, zone: str) -> None:
    by = f" by {row.triggered_by}" if row.triggered_by else ""
    interval = range_of(row.interval_start, row.interval_end, zone)
    print_text(f"{interval}: run {row.run_id} of backfill {row.backfill_id}{by}")
    code = short_code(row.code_sha256)
    print_text(f"  {row.state} {instant(row.finished_at)} (UTC), attempt {row.attempt_id}, code {code}")
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
