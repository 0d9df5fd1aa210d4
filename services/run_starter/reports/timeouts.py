"""Runs that exceed their pipeline's ``run_timeout``: marks them, and has their drivers ended.

A marked run fails when its attempt has ended, because its driver may work until then.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from retrofill.log import get_log
from retrofill.sdk.names import timed_out
from retrofill.states import AttemptMode
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.runs import ErrorInfo
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, runs
from retrofill_core.store.rows import Attempt, Run, present
from run_starter.definitions import Definitions

log = get_log(__name__)


def times_out_at(definition: PipelineDefinition | None, attempt: Attempt, now: datetime) -> datetime | None:
    """When a run of the attempt that begins now times out. Each run of a range has the time of all."""
    if definition is None or definition.run_timeout_seconds is None:
        return None
    return now + timedelta(seconds=definition.run_timeout_seconds * _times(attempt))


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


def _times(attempt: Attempt) -> int:
    return attempt.runs if attempt.mode == AttemptMode.RANGE else 1


def _error(row: Run, attempt: Attempt, definition: PipelineDefinition | None) -> ErrorInfo:
    what = f"run {row.id}" if _times(attempt) == 1 else f"the range with run {row.id}"
    if definition is None or definition.run_timeout_seconds is None:
        return ErrorInfo(type="RunTimedOut", message=f"{what} timed out")
    limit = f"run_timeout of pipeline {definition.name!r}"
    return ErrorInfo(
        type="RunTimedOut", message=timed_out(what, definition.run_timeout_seconds, _times(attempt), limit)
    )
