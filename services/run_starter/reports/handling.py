"""Reports of drivers: gather the rows, fold the reports over them, apply the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from retrofill.log import get_log
from retrofill.states import TaskState
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.faults import Poison
from retrofill_core.bus.handler import Received
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.runs import AttemptEnded, ErrorInfo, Report, RunReport, TaskReported
from retrofill_core.deadlines import Listed, insert_listed
from retrofill_core.domain.callback import Occasion
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, backfills, listed, run_commands
from retrofill_core.store import runs as store
from retrofill_core.store.rows import Attempt, Run
from retrofill_core.store.sql import database_now
from run_starter.definitions import Definitions
from run_starter.reports.alerts import Starts
from run_starter.reports.decide import Fold, TaskKey
from run_starter.reports.outcomes import Apply
from run_starter.reports.steps import End, Outcome
from run_starter.reports.table_places import refused

log = get_log(__name__)
NOTHING_REFUSED: Mapping[int, ErrorInfo] = {}


def handle_reports(
    tx: Transaction,
    received: Sequence[Received],
    definitions: Definitions,
    *,
    max_lost_attempts: int,
    partitions: int,
) -> tuple[dict[int, datetime], int]:
    """Apply a batch of reports.

    Returns the new ends of the leases that they renew, by attempt, and the number of attempts that ended.

    Raises ``Poison`` for an attempt or run that does not belong to the report's backfill.
    """
    reports = [_checked(one) for one in received]
    rows = gather(tx, reports)
    tasks = _task_states(tx, reports, rows.runs)
    outcome, alive = settle(
        tx,
        rows,
        lambda fold: fold.reports(reports),
        definitions,
        tasks=tasks,
        max_lost_attempts=max_lost_attempts,
        partitions=partitions,
        refused=refused(tx, reports, rows.runs),
    )
    crash_point("report:written")
    if outcome.attempts:
        crash_point("report:end-written")
        tx.after_commit.append(lambda: crash_point("report:end-committed"))
    _log_ignored(outcome)
    return alive, len(outcome.attempts)


@dataclass(frozen=True)
class Rows:
    """Locked attempts and runs, by id."""

    attempts: Mapping[int, Attempt]
    runs: Mapping[int, Run]


def settle(
    tx: Transaction,
    rows: Rows,
    decide: Callable[[Fold], Outcome],
    definitions: Definitions,
    *,
    tasks: Mapping[TaskKey, TaskState],
    max_lost_attempts: int,
    partitions: int,
    refused: Mapping[int, ErrorInfo] = NOTHING_REFUSED,
) -> tuple[Outcome, dict[int, datetime]]:
    """Decide about locked rows, and write what changes.

    ``tasks``: states of the task runs that the decision needs. ``refused``: why output must not be accepted, by run.

    Returns the outcome, and the new ends of the leases that it renews.
    """
    # Read after the locks: the time of these facts.
    now = database_now(tx.conn)
    to_begin = _to_begin(tx, rows.runs, definitions)
    names = {id: tuple(task.name for task in definition.tasks) for id, definition in to_begin.items()}
    fold = Fold(
        rows.attempts,
        rows.runs,
        tasks,
        names,
        max_lost_attempts,
        cancelled=_cancelled(tx, rows),
        approvals=_approvals(tx, rows, definitions),
        refused=refused,
    )
    outcome = decide(fold)
    pipelines = definitions.names(tx.conn, {row.backfill_id for row in rows.runs.values()})
    apply = Apply(tx, rows.attempts, rows.runs, pipelines, to_begin, now, outcome)
    arming = Starts(tx, rows.attempts, rows.runs, definitions, partitions, now)
    apply.starts()
    arming.of_runs(outcome.first_starts())
    apply.task_steps()
    arming.of_tasks(outcome.tasks)
    apply.acceptances()
    apply.ends()
    _call_for_new_failures(tx, rows.runs, outcome, definitions, now, partitions)
    return outcome, apply.renewals()


def _call_for_new_failures(
    tx: Transaction,
    runs: Mapping[int, Run],
    outcome: Outcome,
    definitions: Definitions,
    now: datetime,
    partitions: int,
) -> None:
    failed: dict[str, list[int]] = {}
    for id, end in outcome.steps(End):
        if end.state == RunState.FAILED:
            failed.setdefault(runs[id].backfill_id, []).append(id)
    if failed:
        call_for_failures(tx, failed, definitions.of(tx.conn, failed), now, partitions)


def gather(tx: Transaction, reports: Sequence[Report]) -> Rows:
    """Lock what the reports are about. Attempts that end are locked with all their live runs."""
    found = attempts.lock(tx.conn, {report.attempt_id for report in reports})
    for report in reports:
        if report.attempt_id not in found or found[report.attempt_id].backfill_id != report.backfill_id:
            raise Poison(f"backfill {report.backfill_id} has no attempt {report.attempt_id}")
    named = {report.run_id for report in reports if isinstance(report, RunReport)}
    ending = {
        report.attempt_id for report in reports if isinstance(report, AttemptEnded) and found[report.attempt_id].live
    }
    runs = store.lock(tx.conn, named, live_of=ending) if named or ending else {}
    for report in reports:
        if isinstance(report, RunReport) and (
            report.run_id not in runs or runs[report.run_id].backfill_id != report.backfill_id
        ):
            raise Poison(f"backfill {report.backfill_id} has no run {report.run_id}")
    return Rows(found, runs)


def _cancelled(tx: Transaction, rows: Rows) -> set[int]:
    """The runs that users cancelled, of attempts that end for their sake."""
    releasing = {id for id, attempt in rows.attempts.items() if attempt.release_requested}
    runs = {id: row.backfill_id for id, row in rows.runs.items() if row.attempt_id in releasing}
    return run_commands.cancelled_among(tx.conn, set(runs.values()), runs) if runs else set()


def _approvals(tx: Transaction, rows: Rows, definitions: Definitions) -> dict[str, int]:
    """How often those backfills were approved that are reviewed.

    None is approved while a run of it publishes, so this stays true of such a run.
    """
    reviewed = definitions.reviewed(tx.conn, {row.backfill_id for row in rows.runs.values()})
    return backfills.approvals(tx.conn, reviewed) if reviewed else {}


def _to_begin(tx: Transaction, runs: Mapping[int, Run], definitions: Definitions) -> dict[int, PipelineDefinition]:
    """The readable definitions of runs that have not begun, by run id."""
    waiting = {id: row.backfill_id for id, row in runs.items() if row.state == RunState.STARTING}
    known = definitions.of(tx.conn, set(waiting.values())) if waiting else {}
    return {id: known[backfill] for id, backfill in waiting.items() if backfill in known}


def _task_states(tx: Transaction, reports: Sequence[Report], runs: Mapping[int, Run]) -> dict[TaskKey, TaskState]:
    named = {
        (report.run_id, runs[report.run_id].attempt)
        for report in reports
        if isinstance(report, TaskReported) and runs[report.run_id].state != RunState.STARTING
    }
    return store.task_states(tx.conn, named) if named else {}


def _log_ignored(outcome: Outcome) -> None:
    for report, why in outcome.ignored:
        metrics.REPORTS_IGNORED.inc()
        run_id = report.run_id if isinstance(report, RunReport) else None
        log.info(
            "report_ignored",
            type=report.type,
            backfill=report.backfill_id,
            run=run_id,
            attempt=report.attempt_id,
            why=why,
        )


def _checked(one: Received) -> Report:
    if not isinstance(one.message, Report):
        raise Poison(f"a {type(one.message).__name__} does not belong on {one.record.topic}")
    if one.message.backfill_id != one.key:
        raise Poison(f"the key {one.key!r} differs from the body's backfill_id {one.message.backfill_id!r}")
    return one.message


# A callback collects the failures of one backfill. All of them are in its shard, whose transactions follow one another,
# so no two open one at the same time.
def call_for_failures(
    tx: Transaction,
    failed: Mapping[str, Sequence[int]],
    definitions: Mapping[str, PipelineDefinition],
    now: datetime,
    partitions: int,
) -> None:
    """Add failed runs (ids by backfill) to callbacks that collect them, and insert what is missing."""
    lists = {id: definitions[id].on_run_failed for id in failed if id in definitions}
    places = [(id, place) for id, rules in lists.items() for place in range(len(rules))]
    if not places:
        return
    collecting = listed.collecting(tx.conn, [(id, at) for id, at in places if lists[id][at].window_seconds > 0])
    calls: list[Listed] = []
    # The runs of each new callback.
    runs: list[Sequence[int]] = []
    joining: list[tuple[int, int, int]] = []
    for id, place in places:
        rule, there = lists[id][place], collecting.get((id, place))
        new = Listed(rule, place, Occasion.RUN_FAILED, id, definitions[id].name, rule.kwargs)
        if rule.window_seconds == 0:
            calls += [new] * len(failed[id])
            runs += [[run] for run in failed[id]]
        elif there is None:
            calls.append(new)
            runs.append(failed[id])
        else:
            joining += [(run, place, there) for run in failed[id]]
    ids = insert_listed(tx, calls, now, partitions)
    for call, id_, mine in zip(calls, ids, runs, strict=True):
        joining += [(run, call.place, id_) for run in mine]
    listed.add_runs(tx.conn, joining)
