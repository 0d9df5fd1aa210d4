"""``retrofill backfill``: create, preview, list, show, watch, pause, resume, cancel."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from sqlalchemy import Connection, RowMapping

from retrofill.cli.arguments import BackfillOptions, takes_backfill_options
from retrofill.cli.options import ANSWER_SECONDS, AsJson, Limit, PipelineFilter, TimeLimit
from retrofill.cli.output import counts, moment, print_json, print_table, print_text
from retrofill.cli.pipelines import find_pipeline
from retrofill.cli.showing import describe, print_backfill
from retrofill.cli.watching import Progress, missing, watch
from retrofill.client import read as reads
from retrofill.client.ask import ask
from retrofill.client.connect import load_settings, reading
from retrofill.contract.backfills import (
    BackfillCancelRequested,
    BackfillCommandRejected,
    BackfillPauseRequested,
    BackfillPlanned,
    BackfillRejected,
    BackfillRequested,
    BackfillResumeRequested,
)
from retrofill.contract.base import Message
from retrofill.contract.topics import Topic
from retrofill.domain.backfill import BackfillState
from retrofill.domain.planning import Plan, Rejection, find_boundaries, plan
from retrofill.errors import Interrupted, UserError, WrongUsage
from retrofill.settings import Settings
from retrofill.store.clock import database_now
from retrofill.store.pipelines import StoredPipeline
from retrofill.store.planning import history

group = typer.Typer(name="backfill", help="Create, watch, pause and cancel backfills.", no_args_is_help=True)
WILL_RUN = "run"

Id = Annotated[str, typer.Argument(metavar="ID", help="The backfill's id.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Show progress until the backfill ends; exit status 1 unless it succeeds.")
]


def register(app: typer.Typer) -> None:
    app.add_typer(group)


@group.command()
@takes_backfill_options
def create(
    options: BackfillOptions, watch: Watch = False, timeout: TimeLimit = ANSWER_SECONDS, as_json: AsJson = False
) -> None:
    """Request a backfill and wait for the reply."""
    request, settings = options.request(), load_settings()
    key = options.id or str(uuid.uuid4())
    answer = ask(settings, Topic.BACKFILL_REQUESTS, key, request, timeout)
    _finish(settings, key, answer, watching=watch, as_json=as_json)


@group.command("dry-run")
@takes_backfill_options
def dry_run(options: BackfillOptions, as_json: AsJson = False) -> None:
    """Show the runs that a request would create now. Publishes and writes nothing."""
    request, settings = options.request(), load_settings()
    with reading(settings) as conn:
        stored = find_pipeline(conn, request.pipeline)
        decision = preview(conn, settings, stored, request)
    if isinstance(decision, Rejection):
        if as_json:
            print_json({"accepted": False, "reason": decision.reason, "message": decision.message})
        raise UserError(decision.message)
    outcomes = [WILL_RUN if reason is None else str(reason) for reason in decision.skipped]
    if as_json:
        return print_json(_plan_as_json(request, decision, outcomes))
    return _print_plan(decision, outcomes, stored.definition.timezone)


def preview(
    conn: Connection, settings: Settings, stored: StoredPipeline, request: BackfillRequested
) -> Plan | Rejection:
    """The planner's decision if it were made now, by the same rules on the same data."""
    found = find_boundaries(stored.definition, request.from_, request.to, settings.max_plan_runs)
    if isinstance(found, Rejection):
        return found
    known = history(conn, stored.no, found[0], found[-1])
    return plan(stored.definition, found, known, request.reprocess_behavior, database_now(conn))


def _plan_as_json(request: BackfillRequested, made: Plan, outcomes: Sequence[str]) -> dict[str, Any]:
    intervals = zip(made.boundaries, made.boundaries[1:], outcomes, strict=False)
    return {
        "accepted": True,
        "pipeline": request.pipeline,
        "range_start": made.boundaries[0],
        "range_end": made.boundaries[-1],
        "runs": made.runs,
        "skipped": made.skipped_counts,
        "intervals": [{"start": start, "end": end, "outcome": outcome} for start, end, outcome in intervals],
    }


def _print_plan(made: Plan, outcomes: Sequence[str], zone: str) -> None:
    """One line per stretch of adjacent intervals with the same outcome, and the totals."""
    print_table(
        [f"from ({zone})", "until", "intervals", "outcome"],
        [
            [moment(made.boundaries[first], zone), moment(made.boundaries[end], zone), end - first, outcome]
            for first, end, outcome in stretches(outcomes)
        ],
        empty="no intervals",
    )
    print_text(f"would create {made.runs:,} runs of {len(outcomes):,} intervals ({counts(Counter(outcomes))})")


def stretches(outcomes: Sequence[str]) -> list[tuple[int, int, str]]:
    """Adjacent equal outcomes as (first index, end index, outcome)."""
    found: list[tuple[int, int, str]] = []
    for i, outcome in enumerate(outcomes):
        if found and found[-1][2] == outcome:
            found[-1] = (found[-1][0], i + 1, outcome)
        else:
            found.append((i, i + 1, outcome))
    return found


@group.command("list")
def list_(
    pipeline: PipelineFilter = None,
    state: Annotated[list[BackfillState] | None, typer.Option(help="Only backfills in this state; repeatable.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List backfills, newest first."""
    with reading(load_settings()) as conn:
        rows = reads.backfills(conn, pipeline, state or [], limit)
    if as_json:
        return print_json([_listed(row) for row in rows])
    return print_table(
        ["id", "pipeline", "state", "ended", "range (its time zone)"],
        [
            [
                row["id"],
                row["pipeline"],
                row["state"],
                f"{row['ended_runs']}/{row['runs']}",
                _range(row),
            ]
            for row in rows
        ],
        empty="no backfills",
        keep=["state", "ended"],
    )


def _range(row: RowMapping) -> str:
    """The range in the pipeline's time zone, where days start at midnight."""
    zone = row["definition"]["timezone"]
    return f"{moment(row['covers'].lower, zone)} – {moment(row['covers'].upper, zone)}"


def _listed(row: RowMapping) -> dict[str, Any]:
    names = ("id", "pipeline", "state", "runs", "ended_runs", "requested_at", "ended_at", "triggered_by")
    return {
        **{name: row[name] for name in names},
        "range_start": row["covers"].lower,
        "range_end": row["covers"].upper,
    }


@group.command()
def show(
    id: Id,
    failures: Annotated[int, typer.Option(min=0, max=10_000, help="Show at most this many failed runs.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show one backfill: counts, speed, failed runs with their errors, skipped intervals."""
    with reading(load_settings()) as conn:
        row = reads.one_backfill(conn, id)
        if row is None:
            raise UserError(missing(reads.recorded_answer(conn, id), id))
        facts = describe(conn, row, failures)
    if as_json:
        return print_json(facts)
    return print_backfill(facts)


@group.command("watch")
def watch_(id: Id, as_json: AsJson = False) -> None:
    """Show progress until the backfill ends; exit status 1 unless it succeeded."""
    progress = _watch(load_settings(), id, as_json)
    if as_json:
        print_json(_progress_as_json(progress))
    _check_end(progress)


@group.command()
def pause(id: Id, watch: Watch = False, timeout: TimeLimit = ANSWER_SECONDS, as_json: AsJson = False) -> None:
    """Start no new runs; runs in progress finish."""
    _command(id, BackfillPauseRequested(), watch, timeout, as_json)


@group.command()
def resume(id: Id, watch: Watch = False, timeout: TimeLimit = ANSWER_SECONDS, as_json: AsJson = False) -> None:
    """Resume a paused backfill."""
    _command(id, BackfillResumeRequested(), watch, timeout, as_json)


@group.command()
def cancel(id: Id, watch: Watch = False, timeout: TimeLimit = ANSWER_SECONDS, as_json: AsJson = False) -> None:
    """Cancel all runs that have not ended."""
    _command(id, BackfillCancelRequested(), watch, timeout, as_json)


def _command(id: str, request: Message, watching: bool, timeout: float, as_json: bool) -> None:
    if not id.strip():
        raise WrongUsage("the backfill's id is empty")
    settings = load_settings()
    answer = ask(settings, Topic.BACKFILL_REQUESTS, id, request, timeout)
    _finish(settings, id, answer, watching=watching, as_json=as_json)


def _finish(settings: Settings, id: str, answer: Message, *, watching: bool, as_json: bool) -> None:
    """Show the reply, and watch if requested.

    Raises ``UserError`` for a rejection and a bad end.
    """
    document = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    refused = isinstance(answer, BackfillRejected | BackfillCommandRejected)
    if as_json and (refused or not watching):
        print_json(document)
    if isinstance(answer, BackfillRejected | BackfillCommandRejected):
        raise UserError(answer.message)
    if not as_json:
        print_text(_summary(answer, id))
    if watching:
        progress = _watch(settings, id, as_json)
        if as_json:
            print_json({**document, "backfill": _progress_as_json(progress)})
        _check_end(progress, asked_to_cancel=answer.type in ("BackfillCancelling", "BackfillCancelled"))


def _summary(answer: Message, id: str) -> str:
    if isinstance(answer, BackfillPlanned):
        first, end = moment(answer.range_start), moment(answer.range_end)
        skipped = f"\n  skipped: {counts(answer.skipped)}" if answer.skipped else ""
        return (
            f"backfill {id}: {answer.runs:,} runs of {answer.pipeline}, {answer.max_active_runs:,} at once\n"
            f"  {first} – {end} (UTC){skipped}"
        )
    return f"backfill {id}: {answer.type.removeprefix('Backfill').lower()}"


def _watch(settings: Settings, id: str, as_json: bool) -> Progress:
    try:
        return watch(settings, id, quiet=as_json)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped watching; the backfill continues: retrofill backfill watch {id}") from None


def _progress_as_json(progress: Progress) -> dict[str, Any]:
    return {
        "id": progress.id,
        "pipeline": progress.pipeline,
        "state": progress.state,
        "runs": progress.runs,
        "by_state": progress.by_state,
    }


def _check_end(progress: Progress, *, asked_to_cancel: bool = False) -> None:
    """Raises ``UserError`` unless the backfill succeeded, or was cancelled as requested."""
    if progress.state == BackfillState.SUCCEEDED or (asked_to_cancel and progress.state == BackfillState.CANCELLED):
        return
    hint = f": retrofill backfill show {progress.id}" if progress.state == BackfillState.FAILED else ""
    raise UserError(f"backfill {progress.id} {progress.state} ({counts(progress.by_state)}){hint}")
