"""Requests to change an active backfill, and commands about single runs: cancels and retries.

A run is cancelled by the run-starter, unless its output is accepted before. A retry replaces each run with a new one, which
the run-starter starts like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, get_args
from zoneinfo import ZoneInfo

from pydantic import ValidationError

from backfill_planner.decide import Approved, Command, Enter, Refuse, Unchanged, answer_command, nothing_to_do
from backfill_planner.progress import move
from retrofill.system.crash import crash_point
from retrofill_core.bus.handler import Received
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import (
    CANCELLING,
    MAX_LISTED,
    BackfillApproved,
    BackfillCancelled,
    BackfillCancelling,
    BackfillChanged,
    BackfillChangeRequested,
    BackfillCommandRejected,
    BackfillEvent,
    BackfillPaused,
    BackfillPublishRequested,
    BackfillResumed,
    BackfillResumeRequested,
    RunCancelAccepted,
    RunCancelRequested,
    RunRetryRequested,
    RunsRetried,
)
from retrofill_core.contract.base import REGISTRY, Message
from retrofill_core.contract.topics import Topic
from retrofill_core.deadlines import Armer, Subject, resolve
from retrofill_core.domain.backfill import BackfillState, Budget, CancelCause
from retrofill_core.domain.deadline import AT_PLANNING, DeadlineAlert, alerts_counting_from, arm_planned
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.run import CANCELLABLE, RunState
from retrofill_core.domain.schedule import range_bound
from retrofill_core.store import backfills, pipelines, run_commands
from retrofill_core.store.backfills import Outcome
from retrofill_core.store.conditions import count_failed
from retrofill_core.store.rows import Planned
from retrofill_core.store.run_commands import Found, NewRun, starting_within
from retrofill_core.store.sql import CHUNK, database_now
from retrofill_core.store.transition import FromNow

S = BackfillState


def decide(command: BackfillChangeRequested, state: str) -> dict[str, Any] | Refuse:
    """The columns to set, for a backfill in ``state``."""
    if state not in (S.RUNNING, S.PAUSED):
        return nothing_to_do(state, "change")
    given = {name: getattr(command, name) for name in ("max_active_runs", "batch_size", "on_run_failure")}
    changes = {name: value for name, value in given.items() if value is not None}
    return changes or Refuse("it changes nothing: give max_active_runs, batch_size or on_run_failure")


def change(tx: Transaction, row: Planned, command: BackfillChangeRequested) -> BackfillChanged | Refuse:
    """Change the backfill, which is locked."""
    changes = decide(command, row.state)
    if isinstance(changes, Refuse):
        return changes
    if "on_run_failure" in changes:
        # As with a resume, failures committed so far are accepted, and none committed later.
        changes["failed_before"] = count_failed(tx.conn, row.id)
    backfills.change(tx.conn, row.id, changes)
    now = replace(row, **changes)
    of_pipeline = row.definition.get("batch_size", 1)
    return BackfillChanged(
        backfill_id=row.id,
        pipeline=row.pipeline,
        max_active_runs=now.max_active_runs,
        pipeline_max_active_runs=pipelines.limit(tx.conn, row.pipeline_no),
        batch_size=min(now.batch_size or of_pipeline, of_pipeline),
        on_run_failure=now.on_run_failure,
    )


# The reply to a command that leads to a state.
_EVENTS: dict[BackfillState, type[BackfillEvent]] = {
    S.PAUSED: BackfillPaused,
    S.RUNNING: BackfillResumed,
    S.CANCELLING: BackfillCancelling,
    S.CANCELLED: BackfillCancelled,
}

AnyCommand = Command | RunCancelRequested | RunRetryRequested | BackfillChangeRequested
COMMANDS = get_args(AnyCommand)


def handle_command(tx: Transaction, received: Received, command: AnyCommand, partitions: int) -> None:
    """Carry out one command, identified by its ``ce_id``: a repeat only gets the recorded reply."""
    ce_id = received.record.ce_id
    recorded = None if ce_id is None else backfills.command_outcome(tx.conn, received.key, ce_id)
    if recorded is not None:
        answer = REGISTRY[recorded.answer_type].model_validate(recorded.answer)
    else:
        answer = carry_out(tx, received.key, command, ce_id, partitions)
        if ce_id is not None:
            data = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
            backfills.record_command(tx.conn, received.key, ce_id, Outcome(answer.type, data))
    tx.emit(Topic.BACKFILL_EVENTS, received.key, answer, reply_to=received.record)


def carry_out(tx: Transaction, id: str, command: AnyCommand, ce_id: str | None, partitions: int) -> Message:
    """Carry a command out on its locked backfill. Returns the reply."""
    row = backfills.lock(tx.conn, id, wait=True)
    answer: Message | Refuse
    match command:
        case _ if row is None:
            answer = Refuse("there is no backfill with this id: 'retrofill backfill list' shows them all")
        case RunCancelRequested():
            answer = cancel_runs(tx, row, command, ce_id)
        case RunRetryRequested():
            answer = retry_runs(tx, row, command, partitions)
        case BackfillChangeRequested():
            answer = change(tx, row, command)
        case _:
            answer = _enter(tx, row, command)
    if isinstance(answer, Refuse):
        return BackfillCommandRejected(backfill_id=id, command=command.type, message=answer.message)
    return answer


def _enter(tx: Transaction, row: Planned, command: Command) -> Message | Refuse:
    """Move the backfill to the state that the command leads to."""
    about = {"backfill_id": row.id, "pipeline": row.pipeline}
    budget = None
    if isinstance(command, BackfillResumeRequested):
        # The one that a resume would go on with.
        budget = backfills.budget_of(row) if command.budget is None else command.budget
    match answer_command(command, row.state, backfills.budget_exceeded(tx.conn, row.id, budget), row.approved):
        case Approved():
            return BackfillApproved(**about, force=row.forced)
        case Unchanged(where):
            return _EVENTS[where](**about)
        case Enter(to):
            named = _to_publish(tx, row, command) if isinstance(command, BackfillPublishRequested) else None
            if isinstance(named, Refuse):
                return named
            move(tx, row, to, _values(tx, row, command, to, budget))
            tx.schedule_check(row.id)
            if isinstance(command, BackfillPublishRequested):
                runs = None if named is None else len(named)
                return BackfillApproved(**about, force=command.force, runs=runs)
            return _EVENTS[to](**about)
        case Refuse() as refused:
            return refused


def _to_publish(tx: Transaction, row: Planned, command: BackfillPublishRequested) -> Sequence[int] | Refuse | None:
    """The runs that the request names, if any: the others are left to the next review."""
    if not command.intervals:
        return None
    try:
        windows = days(command.intervals, row.definition.get("timezone", "UTC"))
    except ValueError as e:
        return Refuse(f"{e}; nothing was published")
    found = starting_within(tx.conn, row.id, windows, MAX_RUNS + 1)
    chosen = decide_publication([each.isoformat() for each in command.intervals], found)
    if not isinstance(chosen, Refuse):
        backfills.put_off(tx.conn, row.id, chosen, (row.approved or 0) + 1)
    return chosen


def decide_publication(names: Sequence[str], found: Sequence[Found]) -> Sequence[int] | Refuse:
    """Decide which runs of a backfill in review are published: the staged ones of those that are named.

    ``names``: the logical dates as the user wrote them; ``found``: the runs of each, by its number from 1.
    """
    if len(found) > MAX_RUNS:
        return Refuse(f"it names more than {MAX_RUNS:,} runs: name fewer, or publish all that is staged")
    refused = refusal(list(unknown(names, found)), "nothing was published")
    if refused is not None:
        return refused
    staged = dict.fromkeys(each.run_id for each in found if each.state == RunState.STAGED)
    return list(staged) or Refuse("none of the runs that it names is staged: nothing was published")


def _values(
    tx: Transaction, row: Planned, command: Command, to: BackfillState, budget: Budget | None
) -> dict[str, Any]:
    if isinstance(command, BackfillPublishRequested):
        # Ends a review: what waits for it is published.
        return {"approved_at": FromNow(), "approvals": (row.approved or 0) + 1, "forced": command.force}
    if to == S.RUNNING:
        # A resume accepts the failures committed so far, and none committed later.
        accepted = {"resumed_at": FromNow(), "failed_before": count_failed(tx.conn, row.id)}
        return {**accepted, **backfills.budget_columns(budget)}
    return {"cancel_cause": str(CancelCause.USER)} if to == S.CANCELLING else {}


# Most runs that one command names: its reply lists them, in less than half a megabyte.
MAX_RUNS = 10_000


@dataclass(frozen=True)
class CancelRuns:
    """Cancel these runs. ``left``: how many others were named and stay as they are, as the reply says it."""

    runs: tuple[Found, ...]
    left: Mapping[str, int]


def decide_cancels(names: Sequence[str], found: Sequence[Found]) -> CancelRuns | Refuse:
    """Decide on a command for a running or paused backfill.

    ``names``: its parts as the user wrote them; ``found``: the runs of each, by its number from 1.
    """
    if not names:
        return Refuse("it names no run: give intervals (logical dates) or run_ids")
    if len(found) > MAX_RUNS:
        return Refuse(f"it names more than {MAX_RUNS:,} runs: name fewer at a time, or cancel the whole backfill")
    refused = refusal(list(unknown(names, found)), "no run was canceled")
    if refused is not None:
        return refused
    once = {each.run_id: each for each in found}
    why = {id: _why_left(each) for id, each in once.items()}
    return CancelRuns(tuple(once[id] for id in once if why[id] is None), Counter(filter(None, why.values())))


def _why_left(found: Found) -> str | None:
    """The state in which a run is left as it is; ``None``: it is to be cancelled."""
    if found.state not in CANCELLABLE:
        return found.state
    return CANCELLING if found.asked else None


def refusal(problems: Sequence[str], nothing: str) -> Refuse | None:
    """The refusal of a command that names runs, if there is a problem; ``nothing``: what was not done."""
    if not problems:
        return None
    more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
    return Refuse(f"{problems[0]}{more}; {nothing}")


def named(found: Found, zone: str) -> str:
    """The run as replies name it."""
    return f"run {found.run_id} of {found.interval_start.astimezone(ZoneInfo(zone)).isoformat()}"


def unknown(names: Sequence[str], found: Sequence[Found]) -> Iterator[str]:
    """The parts of a command that name no run."""
    there = {each.number for each in found}
    for number, name in enumerate(names, start=1):
        if number not in there:
            yield f"the backfill has no run of {name}: 'retrofill runs list' shows its runs"


def cancel_runs(
    tx: Transaction, row: Planned, command: RunCancelRequested, ce_id: str | None
) -> RunCancelAccepted | Refuse:
    """Record the cancels that are possible. ``row``: the backfill, locked."""
    decision = _cancels(tx, row, command)
    if isinstance(decision, Refuse):
        return decision
    ids = tuple(each.run_id for each in decision.runs)
    run_commands.request_cancels(tx.conn, row.id, ids, ce_id)
    crash_point("run-cancel:written")
    intervals = tuple(each.interval_start for each in decision.runs)
    return RunCancelAccepted(
        backfill_id=row.id, pipeline=row.pipeline, run_ids=ids, intervals=intervals, left=dict(decision.left)
    )


def _cancels(tx: Transaction, row: Planned, command: RunCancelRequested) -> CancelRuns | Refuse:
    if row.state == S.CANCELLING:
        return Refuse("the backfill is cancelling: all its runs are being canceled")
    if row.state not in (S.RUNNING, S.PAUSED):
        return nothing_to_do(row.state, "cancel")
    definition: Mapping[str, str] = row.definition
    zone = definition.get("timezone", "UTC")
    try:
        windows = days(command.intervals, zone)
    except ValueError as e:
        return Refuse(f"{e}; no run was canceled")
    # Runs change states while this is decided: the run-starter decides again, from the rows.
    by_start = starting_within(tx.conn, row.id, windows, MAX_RUNS + 1) if windows else []
    by_id = run_commands.with_ids(tx.conn, row.id, command.run_ids, after=len(windows)) if command.run_ids else []
    names = [*(each.isoformat() for each in command.intervals), *(f"id {each}" for each in command.run_ids)]
    return decide_cancels(names, [*by_start, *by_id])


def days(bounds: Iterable[date | datetime], zone: str) -> list[tuple[datetime, datetime]]:
    """The moments that logical dates name, as closed ranges. Raises ``ValueError``."""
    return [(range_bound(each, zone, end=False), range_bound(each, zone, end=True)) for each in bounds]


# At most this many deadlines of replaced runs are announced to the watcher; it voids the others when they are due.
MAX_HINTS = 1000


@dataclass(frozen=True)
class RetryRuns:
    """Retry the runs with these ids; ``None``: all that failed."""

    ids: frozenset[int] | None


def decide_retries(names: Sequence[str], found: Sequence[Found], zone: str) -> RetryRuns | Refuse:
    """Decide on a command that names runs of a running or paused backfill, or one in review.

    ``names``: its parts as the user wrote them; ``found``: the runs of each, by its number from 1.
    """
    if len(found) > MAX_LISTED:
        return Refuse(f"it names more than {MAX_LISTED:,} runs: name fewer, or retry all failed runs")
    refused = refusal(list(_problems(names, found, zone)), "no run was retried")
    return refused or RetryRuns(frozenset(each.run_id for each in found))


def _problems(names: Sequence[str], found: Sequence[Found], zone: str) -> Iterator[str]:
    yield from unknown(names, found)
    for each in found:
        run = named(each, zone)
        if each.state == RunState.CANCELLED:
            yield f"{run} is cancelled: request its interval again once the backfill has ended"
        elif each.state != RunState.FAILED:
            yield f"{run} is {each.state}: only failed runs are retried"


def retry_runs(tx: Transaction, row: Planned, command: RunRetryRequested, partitions: int) -> RunsRetried | Refuse:
    """Replace the runs, if all of them may be retried. ``row``: the backfill, locked."""
    decision = _retries(tx, row, command)
    if isinstance(decision, Refuse):
        return decision
    try:
        alerts = PipelineDefinition.model_validate(row.definition).deadlines
    except ValidationError:
        return Refuse("a newer release planned the backfill: upgrade the backfill-planner to retry its runs")
    count, new = _replace(tx, row, decision, alerts_counting_from(alerts, *AT_PLANNING), partitions)
    # Which of the failures were accepted is not known, so those that were count as replaced first:
    # as long as one is left that may not have been, the backfill is paused or cancelled over it.
    changes: dict[str, Any] = {"failed_before": max(0, row.failed_before - count)}
    if command.latest_code:
        changes["code_follows"] = True
    backfills.change(tx.conn, row.id, changes)
    if row.state == S.IN_REVIEW:
        # It runs again until the new runs have ended or staged their output as well.
        move(tx, row, S.RUNNING, {"staged_at": None})
    crash_point("run-retry:written")
    listed = new if count <= MAX_LISTED else []
    return RunsRetried(
        backfill_id=row.id,
        pipeline=row.pipeline,
        runs=count,
        run_ids=tuple(each.id for each in listed),
        intervals=tuple(each.interval_start for each in listed),
        **_code(tx, row, latest=row.code_follows or command.latest_code),
    )


def _code(tx: Transaction, row: Planned, *, latest: bool) -> dict[str, Any]:
    """Which code retried runs use, as the reply says it."""
    planned = row.definition.get("code", {}).get("sha256")
    if row.undoes is not None:
        return {"undoes": row.undoes}
    code = pipelines.codes(tx.conn, [row.pipeline_no]).get(row.pipeline_no)
    applied = planned if code is None else code.sha256
    if latest:
        return {"code_sha256": applied, "latest_code": True}
    return {"code_sha256": planned, "newer_code_sha256": applied if applied != planned else None}


def _retries(tx: Transaction, row: Planned, command: RunRetryRequested) -> RetryRuns | Refuse:
    if row.state == S.CANCELLING:
        return Refuse(f"the backfill is cancelling: once it has ended, use 'retrofill backfill retry {row.id}'")
    if row.state not in (S.RUNNING, S.PAUSED, S.IN_REVIEW):
        return Refuse(f"the backfill is {row.state}: 'retrofill backfill retry {row.id}' requests a new one")
    if command.all_failed == bool(command.intervals):
        return Refuse("it must name runs: give either intervals (logical dates) or all_failed")
    if command.latest_code and row.undoes is not None:
        return Refuse("it is an undo, which runs no code of the pipeline: retry it without latest_code (--latest-code)")
    if command.all_failed:
        failed = count_failed(tx.conn, row.id)
        return RetryRuns(None) if failed else Refuse("none of its runs is failed: there is nothing to retry")
    zone = row.definition.get("timezone", "UTC")
    try:
        windows = days(command.intervals, zone)
    except ValueError as e:
        return Refuse(f"{e}; no run was retried")
    found = starting_within(tx.conn, row.id, windows, MAX_LISTED + 1)
    return decide_retries([each.isoformat() for each in command.intervals], found, zone)


def _replace(
    tx: Transaction, row: Planned, decision: RetryRuns, alerts: Sequence[DeadlineAlert], partitions: int
) -> tuple[int, list[NewRun]]:
    """Replace the runs, ``CHUNK`` of them per statement, and arm the deadlines of the new ones.

    Returns their number, and the first ``MAX_LISTED`` of them or some more.
    """
    now = database_now(tx.conn)
    armer = Armer(tx, row.id, row.pipeline, partitions, now)
    new: list[NewRun] = []
    count, last = 0, -1
    left = MAX_HINTS
    while True:
        # Of the runs that fail meanwhile, only later ones are retried as well.
        chunk = run_commands.failed_runs(tx.conn, row.id, decision.ids, after=last, most=CHUNK)
        if not chunk:
            return count, new
        # What a retry stages was not part of the reviews until now.
        made = run_commands.replace_failed(tx.conn, chunk, now, row.approved or 0)
        for alert in alerts:
            armer.arm(alert, [Subject(each.id, arm_planned(alert, each.interval_start, now)) for each in made])
        open_ones = run_commands.armed_deadlines(tx.conn, [each.replaces for each in made], left) if left else []
        resolve(tx, open_ones)
        left -= len(open_ones)
        count, last = count + len(made), made[-1].position
        if len(new) <= MAX_LISTED:
            new += made
