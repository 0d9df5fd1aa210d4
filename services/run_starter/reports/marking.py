"""Runs that fail by a mark: those that exceed their pipeline's ``run_timeout``, and those of whose reports one is a dead letter.

A marked run fails when its attempt has ended, because its driver may work until then. What was accepted already does not
fail: another publisher takes over, after a pause. Nobody else would answer the driver of a dead report, whose heartbeats renew
the lease all the same: Kafka has acknowledged them, so it counts on that.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from retrofill.log import get_log
from retrofill.sdk.names import timed_out
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.runs import SUBJECT, ErrorInfo, Report, RunBegan, RunPublicationPutOff
from retrofill_core.contract.topics import partition_of
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.run import LIVE, RunState
from retrofill_core.store import attempts, runs
from retrofill_core.store.rows import Attempt, Run, present
from retrofill_core.store.sql import database_now
from run_starter.definitions import Definitions
from run_starter.reports.handling import Rows, settle
from run_starter.reports.outcomes import times

log = get_log(__name__)


def interrupt(tx: Transaction, definitions: Definitions, moment: datetime) -> bool:
    """Mark running runs that timed out before ``moment``; their hosts end the drivers.

    Returns whether there is any. Call it after the reports were read to their end as of ``moment``,
    or a run would fail whose output arrived in time.
    """
    late = [each.attempt_id for each in attempts.leases(tx.conn, tx.partition) if _before(each.times_out_at, moment)]
    live = {id: row for id, row in attempts.lock(tx.conn, late).items() if row.live} if late else {}
    if not live:
        return False
    over = [
        row
        for row in runs.lock(tx.conn, (), live_of=live).values()
        if row.state == RunState.RUNNING and row.error is None and _before(row.times_out_at, moment)
    ]
    if not over:
        return False
    known = definitions.of(tx.conn, {row.backfill_id for row in over})
    errors = {row.id: _error(row, live[present(row.attempt_id)], known.get(row.backfill_id)) for row in over}
    runs.mark_failing(tx.conn, {id: error.model_dump(exclude_none=True) for id, error in errors.items()})
    ended = {present(row.attempt_id) for row in over}
    attempts.mark_release_requested(tx.conn, ended)
    tx.notify(attempts.ATTEMPT_CHANNEL, sorted(ended))
    for row in over:
        log.warning("run_timed_out", backfill=row.backfill_id, run=row.id, attempt=row.attempt_id)
    return True


def _before(at: datetime | None, moment: datetime) -> bool:
    return at is not None and at < moment


def _error(row: Run, attempt: Attempt, definition: PipelineDefinition | None) -> ErrorInfo:
    what = f"run {row.id}" if times(attempt) == 1 else f"the range with run {row.id}"
    if definition is None or definition.run_timeout_seconds is None:
        return ErrorInfo(type="RunTimedOut", message=f"{what} timed out")
    limit = f"run_timeout of pipeline {definition.name!r}"
    return ErrorInfo(type="RunTimedOut", message=timed_out(what, definition.run_timeout_seconds, times(attempt), limit))


_SUBJECT = re.compile(r"attempts/(\d{1,18})(?:/runs/(\d{1,18}))?")


def apply_dead(
    tx: Transaction, record: Record, reason: str, definitions: Definitions, *, max_lost_attempts: int, partitions: int
) -> dict[int, datetime]:
    """Apply what follows from a dead letter about a live attempt. Returns the new end of the lease if it renews it.

    If it was about a live run, that is marked, and its driver is ended.
    """
    named = _SUBJECT.fullmatch(record.headers.get(SUBJECT, ""))
    if named is None or record.key is None:
        return {}
    attempt_id = int(named[1])
    attempt = attempts.lock(tx.conn, [attempt_id]).get(attempt_id)
    if attempt is None or not attempt.live or attempt.backfill_id.encode() != record.key:
        return {}
    if partition_of(attempt.backfill_id, partitions) != tx.partition:
        return {}
    if named[2] is None:
        return _renew(tx, attempt)
    run_id = int(named[2])
    row = runs.lock(tx.conn, [run_id]).get(run_id)
    if row is None or row.attempt_id != attempt_id or row.state not in LIVE:
        return {}
    error = _refused(record, reason)
    about = {"backfill_id": attempt.backfill_id, "attempt_id": attempt_id, "run_id": run_id}
    known: list[Report] = []
    if row.state == RunState.STARTING:
        known = [RunBegan(**about, attempt=row.attempt + 1)]
    elif row.state == RunState.PUBLISHING:
        known = [RunPublicationPutOff(**about, attempt=row.attempt, publication=row.publication, error=error)]
    if known:
        settle(
            tx,
            Rows({attempt_id: attempt}, {run_id: row}),
            lambda fold: fold.reports(known),
            definitions,
            tasks={},
            max_lost_attempts=max_lost_attempts,
            partitions=partitions,
        )
    runs.mark_failing(tx.conn, {run_id: error.model_dump(exclude_none=True)})
    attempts.mark_release_requested(tx.conn, [attempt_id])
    tx.notify(attempts.ATTEMPT_CHANNEL, [attempt_id])
    return {}


def _renew(tx: Transaction, attempt: Attempt) -> dict[int, datetime]:
    """Renew the lease, also if the letter says that the attempt has ended: the lease ends it then, a little later."""
    until = {attempt.id: database_now(tx.conn) + timedelta(seconds=attempt.lease_seconds)}
    attempts.extend_leases(tx.conn, until)
    return until


def _refused(record: Record, reason: str) -> ErrorInfo:
    where = f"{record.topic}, partition {record.partition}, offset {record.offset}"
    kind = record.headers.get("ce_type", "report")
    return ErrorInfo(
        type="ReportRefused",
        message=f"its driver's {kind} could not be applied and is a dead letter ({where}): {reason}"[:4000],
    )
