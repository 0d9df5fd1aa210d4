"""``retrofill backfill``: request, watch, change, end, compare, retry and undo backfills."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retrofill.errors import InReview, Interrupted, UserError, WrongUsage
from retrofill.sdk.names import MAX_BATCH
from retrofill.wording import plural
from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillChanged,
    BackfillChangeRequested,
    BackfillCommandRejected,
    BackfillDiscardRequested,
    BackfillPauseRequested,
    BackfillPlanned,
    BackfillPublishRequested,
    BackfillRejected,
    BackfillResumeRequested,
    RunRetryRequested,
    RunsRetried,
)
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import BackfillState, OnRunFailure
from retrofill_core.domain.schedule import written_range
from retrofill_core.settings import Settings
from retrofill_tools.cli.arguments import (
    BUDGET,
    BackfillOptions,
    Dates,
    read_budget,
    read_dates,
    read_since,
    takes_backfill_options,
)
from retrofill_tools.cli.asking import Yes, confirm
from retrofill_tools.cli.options import (
    ANSWER_SECONDS,
    AsJson,
    Form,
    LatestCode,
    Limit,
    PipelineFilter,
    TimeLimit,
    backfill_ids,
    takes_form,
)
from retrofill_tools.cli.output import (
    Column,
    concurrency,
    counts,
    expectation,
    print_json,
    print_list,
    print_one,
    print_text,
    range_of,
    short_code,
    warn,
)
from retrofill_tools.cli.showing import print_backfill
from retrofill_tools.client.backfills import Search, describe_backfill, find_backfill, find_backfills
from retrofill_tools.client.connect import load_settings, local_user, reading
from retrofill_tools.client.kafka import ask
from retrofill_tools.client.previews import Refusal, look_ahead
from retrofill_tools.client.requests import requested_again

if TYPE_CHECKING:
    from retrofill_tools.cli.watching import Progress

# That of a UUID, as the ids of requests without one are.
LONGEST_KEPT_ID = 36
group = typer.Typer(
    name="backfill",
    help="Create, dry-run, list, show, watch, pause, resume, change, retry, cancel and undo backfills; diff, publish or "
    "discard what is in review.",
    no_args_is_help=True,
)

Id = Annotated[str, typer.Argument(metavar="ID", help="The backfill's id.", autocompletion=backfill_ids)]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch", help="Show progress until the backfill ends; exit status 1 unless it succeeds, 3 if it is in review."
    ),
]


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
    from retrofill_tools.cli.previewing import print_plan

    request, settings = options.request(), load_settings()
    with reading(settings) as conn:
        found = look_ahead(conn, settings, request)
    if as_json:
        print_json(found.as_json())
    if isinstance(found, Refusal):
        raise UserError(found.rejection.message)
    if not as_json:
        warn([*([] if found.pool_wait is None else [found.pool_wait]), *found.notes])
        print_plan(found)
        print_text(expectation(found.expected))


@group.command("list")
@takes_form
def list_(
    pipeline: PipelineFilter = None,
    state: Annotated[list[BackfillState] | None, typer.Option(help="Only backfills in this state; repeatable.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only backfills that failed or have failed runs.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only backfills that were active since a day, a datetime, or an age like 7d."
        ),
    ] = None,
    limit: Limit = 50,
    *,
    form: Form,
) -> None:
    """List backfills, newest first."""
    search = Search(active_since=None if since is None else read_since(since), failed=failed)
    with reading(load_settings()) as conn:
        counted = form not in (Form.TABLE, Form.NAME)
        found = find_backfills(conn, pipeline, state or [], limit, counted=counted, search=search)
    # Ids are copied; very long ones would leave no room for the rest.
    short = all(len(each.id) <= LONGEST_KEPT_ID for each in found)
    columns = [
        Column("id", lambda each: each.id, keep=short),
        Column("pipeline", lambda each: each.pipeline),
        Column("state", lambda each: each.state, keep=True),
        Column("ended", lambda each: f"{each.ended_runs}/{each.runs}", keep=True),
        Column("failed", lambda each: each.by_state.get("failed", 0), wide=True),
        Column("range (its time zone)", lambda each: range_of(each.range_start, each.range_end, each.timezone)),
        Column("time zone", lambda each: each.timezone, wide=True),
        Column("requested (UTC)", lambda each: each.requested_at, wide=True),
        Column("ended (UTC)", lambda each: each.ended_at, wide=True),
        Column("requested by", lambda each: each.triggered_by, wide=True),
        Column("concurrency", lambda each: each.max_active_runs, wide=True),
    ]
    print_list(form, found, columns, name=lambda each: each.id, empty="no backfills")


@group.command()
@takes_form
def show(
    id: Id,
    failures: Annotated[int, typer.Option(min=0, max=10_000, help="Show at most this many failed runs.")] = 10,
    *,
    form: Form,
) -> None:
    """Show one backfill: counts, speed, failed runs with their errors, skipped intervals."""
    with reading(load_settings()) as conn:
        facts = describe_backfill(conn, find_backfill(conn, id), failures)
    print_one(form, facts, facts.id, lambda: print_backfill(facts))


@group.command("watch")
def watch_(id: Id, as_json: AsJson = False) -> None:
    """Show progress until the backfill ends; exit status 1 unless it succeeded, 3 if it is in review."""
    progress = _watch(load_settings(), id, as_json)
    if as_json:
        print_json(_progress_as_json(progress))
    _check_end(progress)


@group.command()
def pause(id: Id, watch: Watch = False, timeout: TimeLimit = ANSWER_SECONDS, as_json: AsJson = False) -> None:
    """Start no new runs; runs in progress finish."""
    _command(id, BackfillPauseRequested(), watch, timeout, as_json)


@group.command()
def resume(
    id: Id,
    budget: Annotated[str | None, BUDGET] = None,
    watch: Watch = False,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Resume a paused backfill; one whose budget is used up needs a new budget (--budget none: no limits)."""
    request = BackfillResumeRequested(budget=None if budget is None else read_budget(budget))
    _command(id, request, watch, timeout, as_json)


@group.command("diff")
def diff(
    id: Id,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this many outputs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Compare the staged output of a backfill in review with the published output; largest changes first."""
    from retrofill_tools.cli.previewing import compare

    compare(id, limit, as_json=as_json)


@group.command()
def publish(
    id: Id,
    force: Annotated[
        bool, typer.Option("--force", help="Publish even where the target has changed since the comparison.")
    ] = False,
    dates: Dates = None,
    watch: Watch = False,
    yes: Yes = False,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Publish the staged output of a backfill in review. Output whose target has changed is reviewed again.

    With --dates, only these intervals; the others wait for another review.
    """
    intervals = tuple(read_dates(dates))
    if dates and not intervals:
        raise WrongUsage("--dates has no date")
    if force:
        confirm(f"publish backfill {id} even where its target has changed since the comparison", yes=yes)
    _command(id, BackfillPublishRequested(force=force, intervals=intervals), watch, timeout, as_json)


@group.command()
def discard(
    id: Id, watch: Watch = False, yes: Yes = False, timeout: TimeLimit = ANSWER_SECONDS, as_json: AsJson = False
) -> None:
    """Cancel a backfill in review: its staged output is not published."""
    confirm(f"discard what backfill {id} has staged", yes=yes)
    _command(id, BackfillDiscardRequested(), watch, timeout, as_json)


@group.command()
def cancel(
    id: Id, watch: Watch = False, yes: Yes = False, timeout: TimeLimit = ANSWER_SECONDS, as_json: AsJson = False
) -> None:
    """Cancel all runs that have not ended."""
    confirm(f"cancel all unfinished runs of backfill {id}", yes=yes)
    _command(id, BackfillCancelRequested(), watch, timeout, as_json)


@group.command()
def change(
    id: Id,
    max_active_runs: Annotated[int | None, typer.Option(min=1, max=10_000, help="Maximum concurrency.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=MAX_BATCH, help="Batch size, up to the pipeline's.")
    ] = None,
    on_run_failure: Annotated[
        OnRunFailure | None, typer.Option(help="What to do when a run fails permanently from now on.")
    ] = None,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Change an active backfill. Options that you omit keep their values."""
    values = {"max_active_runs": max_active_runs, "batch_size": batch_size, "on_run_failure": on_run_failure}
    if not any(values.values()):
        raise WrongUsage("nothing to change: give --max-active-runs, --batch-size or --on-run-failure")
    _command(id, BackfillChangeRequested.model_validate(values), False, timeout, as_json)


@group.command()
def retry(
    id: Id,
    latest_code: LatestCode = False,
    watch: Watch = False,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Retry all failed runs. For an ended backfill, request its failed and canceled runs again.

    A retry in an active backfill uses the code that the backfill was planned with, unless --latest-code is given. A new
    backfill uses the code that is applied now.
    """
    settings = load_settings()
    with reading(settings) as conn:
        found = find_backfill(conn, id)
        again = None if found.ended_at is None else requested_again(conn, found, local_user())
    if again is None:
        return _command(id, RunRetryRequested(all_failed=True, latest_code=latest_code), watch, timeout, as_json)
    if again.note is not None:
        warn([again.note])
    request = again.request.model_copy(update={"latest_code": True}) if latest_code else again.request
    return _command(str(uuid.uuid4()), request, watch, timeout, as_json)


@group.command()
def undo(
    id: Id,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="DATE", help="First logical date to undo. Default: all.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="DATE", help="Last logical date, inclusive.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which intervals would be undone.")] = False,
    review: Annotated[
        bool, typer.Option("--review", help="Publish what is restored only after 'retrofill backfill publish ID'.")
    ] = False,
    new_id: Annotated[str | None, typer.Option("--id", help="The new backfill's id. Default: a new one.")] = None,
    watch: Watch = False,
    yes: Yes = False,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Restore what the runs of an ended backfill replaced, by a new backfill."""
    from retrofill_tools.cli.previewing import preview_undo, undo_request

    request = undo_request(id, from_, to, review=review)
    if dry_run:
        return preview_undo(request, as_json=as_json)
    if new_id is not None and not new_id.strip():
        raise WrongUsage("--id is empty")
    if not review:
        confirm(f"restore what the runs of backfill {id} replaced", yes=yes)
    return _command(new_id or str(uuid.uuid4()), request, watch, timeout, as_json)


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
        covers = written_range(answer.range_start, answer.range_end, answer.timezone or "UTC")
        limit = concurrency(answer.max_active_runs, answer.pipeline_max_active_runs)
        what = "" if answer.undoes is None else f", which undo backfill {answer.undoes}"
        skipped = f"\n  skipped: {counts(answer.skipped)}" if answer.skipped else ""
        if answer.recognized:
            skipped += f" ({answer.recognized:,} of these done by runs of other intervals)"
        if answer.partly_done:
            skipped += (
                f"\n  {answer.partly_done:,} of the runs have intervals that runs of other intervals have done in part"
            )
        return (
            f"backfill {id}: {plural(answer.runs, 'run')} of {answer.pipeline}, concurrency {limit}{what}\n"
            f"  {covers}{skipped}\n  {planned_code(answer)}"
        )
    if isinstance(answer, RunsRetried):
        return retrying(id, answer)
    if isinstance(answer, BackfillChanged):
        limit = concurrency(answer.max_active_runs, answer.pipeline_max_active_runs)
        return (
            f"backfill {id}: concurrency {limit}, batch size {answer.batch_size:,}, on run failure: "
            f"{answer.on_run_failure}"
        )
    return f"backfill {id}: {answer.type.removeprefix('Backfill').lower()}"


def planned_code(answer: BackfillPlanned) -> str:
    """Which code the runs of a new backfill use."""
    if answer.undoes is not None:
        return "code: none of the pipeline's"
    if answer.latest_code:
        return "code: at each start, what is applied then"
    return f"code: {short_code(answer.code_sha256)}"


def retrying(id: str, answer: RunsRetried) -> str:
    """What is retried, and with which code."""
    if answer.undoes is not None:
        return f"backfill {id}: retrying {plural(answer.runs, 'run')}"
    code = short_code(answer.code_sha256)
    if answer.latest_code:
        how = f"with the code that is applied when they start (now: {code})"
    else:
        how = f"with the code that the backfill was planned with ({code})"
    if answer.newer_code_sha256 is not None:
        how += f"; newer code is applied ({short_code(answer.newer_code_sha256)}): --latest-code uses it"
    return f"backfill {id}: retrying {plural(answer.runs, 'run')} {how}"


def _watch(settings: Settings, id: str, as_json: bool) -> Progress:
    from retrofill_tools.cli.watching import watch

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
    """Raises ``InReview``, or ``UserError`` unless the backfill succeeded or was cancelled as requested."""
    if progress.state == BackfillState.IN_REVIEW:
        raise InReview(
            f"backfill {progress.id} is in review ({counts(progress.by_state)}): compare with retrofill backfill diff "
            f"{progress.id}, then retrofill backfill publish {progress.id} or discard {progress.id}"
        )
    if progress.state == BackfillState.SUCCEEDED or (asked_to_cancel and progress.state == BackfillState.CANCELLED):
        return
    hint = f": retrofill backfill show {progress.id}" if progress.state == BackfillState.FAILED else ""
    raise UserError(f"backfill {progress.id} {progress.state} ({counts(progress.by_state)}){hint}")
