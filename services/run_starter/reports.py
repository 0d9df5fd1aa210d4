"""Reports of drivers: gather the rows, fold the reports over them, write the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import structlog
from sqlalchemy import RowMapping

from retrofill.bus.crash import crash_point
from retrofill.bus.faults import Poison
from retrofill.bus.handler import Received
from retrofill.bus.observability import metrics
from retrofill.bus.transaction import Transaction
from retrofill.contract.runs import Report, TaskReported
from retrofill.domain.run import RunState
from retrofill.domain.task_run import TaskState
from retrofill.store import runs as store
from retrofill.store import task_runs
from retrofill.store.clock import database_now
from run_starter.alerts import Starts
from run_starter.decide import Outcome, RunRow, TaskKey, fold
from run_starter.definitions import Definitions
from run_starter.endings import write_ends, write_stages, write_starts, write_tasks
from run_starter.losses import losses_of

log = structlog.get_logger(__name__)


def handle_reports(
    tx: Transaction,
    received: Sequence[Received],
    definitions: Definitions,
    *,
    lease_seconds: float,
    max_lost_attempts: int,
    partitions: int,
) -> list[int]:
    """Apply a batch of reports. Returns the ids of the runs whose leases they renew.

    ``lease_seconds``: for attempts claimed by an older release, which stored none.
    Raises ``Poison`` for a run that does not belong to the report's backfill.
    """
    reports = [_checked(one) for one in received]
    rows, tasks = _gather(tx, reports)
    outcome = fold(reports, {id: run_row(row) for id, row in rows.items()}, tasks, max_lost_attempts)
    # Read after the locks: the time of these facts.
    now = database_now(tx.conn)
    pipelines = definitions.names(tx.conn, {row["backfill_id"] for row in rows.values()})
    write_starts(tx, rows, outcome.runs, pipelines, now)
    arming = Starts(tx, rows, definitions, partitions, now)
    arming.of_runs([id for id, o in outcome.runs.items() if o.first_start])
    write_tasks(tx, rows, outcome.tasks, pipelines, now)
    arming.of_tasks(outcome.tasks)
    write_stages(tx, rows, outcome.runs, pipelines, now)
    write_ends(tx, rows, outcome.runs, pipelines, now)
    alive = [id for id, o in outcome.runs.items() if o.alive and o.ends is None and not o.orphaned]
    # Each by its own length, by which its driver ends itself.
    until = {id: now + timedelta(seconds=rows[id]["lease_seconds"] or lease_seconds) for id in alive}
    store.extend_leases(tx.conn, {(id, rows[id]["attempt"]): until[id] for id in alive})
    crash_point("report:written")
    if any(o.ends is not None for o in outcome.runs.values()):
        crash_point("report:end-written")
        tx.after_commit.append(lambda: crash_point("report:end-committed"))
    _log_ignored(outcome)
    return alive


def _gather(tx: Transaction, reports: Sequence[Report]) -> tuple[Mapping[int, RowMapping], dict[TaskKey, TaskState]]:
    """The locked runs by id, and the states of the tasks that the reports name."""
    rows = store.lock(tx.conn, {report.run_id for report in reports})
    for report in reports:
        if report.run_id not in rows or rows[report.run_id]["backfill_id"] != report.backfill_id:
            raise Poison(f"backfill {report.backfill_id} has no run {report.run_id}")
    current = {(row["id"], row["attempt"]) for row in rows.values()}
    reported = {(r.run_id, r.attempt) for r in reports if isinstance(r, TaskReported)} & current
    found = task_runs.find(tx.conn, reported) if reported else {}
    return rows, {key: TaskState(row["state"]) for key, row in found.items()}


def _log_ignored(outcome: Outcome) -> None:
    for report, why in outcome.ignored:
        metrics.REPORTS_IGNORED.inc()
        log.info(
            "report_ignored",
            type=report.type,
            backfill=report.backfill_id,
            run=report.run_id,
            attempt=report.attempt,
            why=why,
        )


def run_row(row: RowMapping) -> RunRow:
    """The fields of a run that decisions need."""
    return RunRow(
        id=row["id"],
        state=RunState(row["state"]),
        attempt=row["attempt"],
        lost_attempts=row["lost_attempts"],
        cancel_requested=row["cancel_requested"],
        started_before=row["started_at"] is not None,
        publication=row["publication"],
        orphaned=row["state"] == RunState.PUBLISHING and row["host"] is None,
        losses=losses_of(row["losses"]),
    )


def _checked(one: Received) -> Report:
    if not isinstance(one.message, Report):
        raise Poison(f"a {type(one.message).__name__} does not belong on {one.record.topic}")
    if one.message.backfill_id != one.key:
        raise Poison(f"the key {one.key!r} differs from the body's backfill_id {one.message.backfill_id!r}")
    return one.message
