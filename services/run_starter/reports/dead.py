"""Reports that became dead letters: their run fails, and people see why. Nobody else would answer its driver.

A run that fails by a mark does so when its attempt has ended, because its driver may work until then: as one that
timed out. What was accepted already does not fail: another publisher takes over, after a pause.
"""

from __future__ import annotations

import re

from retrofill_core.bus.envelope import Record
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.runs import SUBJECT, ErrorInfo, Report, RunBegan, RunPublicationPutOff
from retrofill_core.contract.topics import partition_of
from retrofill_core.domain.run import LIVE, RunState
from retrofill_core.store import attempts, runs
from run_starter.definitions import Definitions
from run_starter.reports.handling import Rows, settle

_SUBJECT = re.compile(r"attempts/(\d{1,18})/runs/(\d{1,18})")


def fail_run(
    tx: Transaction, record: Record, reason: str, definitions: Definitions, *, max_lost_attempts: int, partitions: int
) -> bool:
    """Mark the run that a dead letter was about, if it is live, and have its driver ended. Returns whether it is."""
    named = _SUBJECT.fullmatch(record.headers.get(SUBJECT, ""))
    if named is None or record.key is None:
        return False
    attempt_id, run_id = map(int, named.groups())
    attempt = attempts.lock(tx.conn, [attempt_id]).get(attempt_id)
    if attempt is None or not attempt.live or attempt.backfill_id.encode() != record.key:
        return False
    if partition_of(attempt.backfill_id, partitions) != tx.partition:
        return False
    row = runs.lock(tx.conn, [run_id]).get(run_id)
    if row is None or row.attempt_id != attempt_id or row.state not in LIVE:
        return False
    error = _error(record, reason)
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
    return True


def _error(record: Record, reason: str) -> ErrorInfo:
    where = f"{record.topic}, partition {record.partition}, offset {record.offset}"
    kind = record.headers.get("ce_type", "report")
    return ErrorInfo(
        type="ReportRefused",
        message=f"its driver's {kind} could not be applied and is a dead letter ({where}): {reason}"[:4000],
    )
