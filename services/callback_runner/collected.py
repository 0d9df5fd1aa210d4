"""Closes callbacks that collect failed runs: from their first claim on, none can join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from callback_runner.decide import why_dropped
from callback_runner.record import drop
from retrofill.errors import shortened
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.deadlines import FailedRun, RunsFailed
from retrofill_core.contract.runs import ErrorInfo
from retrofill_core.contract.topics import Topic
from retrofill_core.deadlines import expanded
from retrofill_core.domain.backfill import show_command
from retrofill_core.domain.templates import in_zone
from retrofill_core.store import deadlines, listed
from retrofill_core.store.callbacks import Pending
from retrofill_core.store.sql import database_now

# A call lists at most this many runs; all are rows of ``callback_run``.
LISTED = 100
ERROR_CHARACTERS = 500


def close_all(tx: Transaction, pending: Sequence[Pending]) -> list[Pending]:
    """Give locked callbacks that collect failures their event. Returns those to call, as they are now.

    Drops those about runs that were all retried meanwhile, and messages to people that a newer one follows.
    """
    ids = {one.backfill_id for one in pending if one.collects and one.backfill_id is not None}
    backfills = deadlines.backfill_facts(tx.conn, ids) if ids else {}
    closed = [_close(tx, one, backfills) if one.collects else one for one in pending]
    dropped = {one.deadline_id: why for one in closed if (why := why_dropped(one)) is not None}
    drop(tx, [one for one in closed if one.deadline_id in dropped], dropped)
    return [one for one in closed if one.deadline_id not in dropped]


def _close(tx: Transaction, one: Pending, backfills: Mapping[str, deadlines.BackfillFacts]) -> Pending:
    assert one.backfill_id is not None  # only what a pipeline lists collects
    id, backfill = one.deadline_id, backfills[one.backfill_id]
    count = listed.count_failed_runs(tx.conn, id)
    if not count:
        return one
    failed = [_failed(each) for each in listed.failed_runs(tx.conn, id, LISTED)]
    event = RunsFailed(
        callback_id=id,
        pipeline=one.pipeline,
        backfill_id=one.backfill_id,
        count=count,
        not_listed=count - len(failed),
        failed=failed,
        runs=backfill.runs,
        runs_done=backfill.runs_done,
        closed_at=database_now(tx.conn),
        callback=one.label,
        command=show_command(one.backfill_id),
    )
    kwargs = expanded(one.kwargs, in_zone(_fields(event), backfill.timezone), callback=id)
    body = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    listed.close(tx.conn, id, body, kwargs)
    tx.emit(Topic.CALLBACK_EVENTS, id, event)
    return replace(one, event=body, kwargs=kwargs, collects=False)


def _failed(run: listed.ListedFailure) -> FailedRun:
    return FailedRun(
        run_id=run.id,
        interval_start=run.interval_start,
        interval_end=run.interval_end,
        attempt=run.attempt,
        lost_attempts=run.lost_attempts,
        failed_at=run.finished_at,
        error=None if run.error is None else _cut(run.error),
    )


def _cut(error: Mapping[str, str]) -> ErrorInfo:
    return ErrorInfo(type=error["type"], message=shortened(error["message"], ERROR_CHARACTERS))


def _fields(event: RunsFailed) -> dict[str, Any]:
    """The fields that templates may refer to: ``RUN_FAILED_FIELDS``."""
    first = event.failed[0]
    return {
        "pipeline": event.pipeline,
        "backfill.id": event.backfill_id,
        "backfill.runs": event.runs,
        "backfill.runs_done": event.runs_done,
        "run.id": first.run_id,
        "run.logical_date": first.interval_start,
        "run.interval_start": first.interval_start,
        "run.interval_end": first.interval_end,
        "run.attempt": first.attempt,
        "run.failed_at": first.failed_at,
        "error.type": None if first.error is None else first.error.type,
        "error.message": None if first.error is None else first.error.message,
        "digest.count": event.count,
    }
