"""A claimed callback, and the record of the outcome of a try: row, events and dead letter in one transaction.

Callbacks that collect failed runs are closed here, too: from their first claim on, none can join.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from callback_runner.decide import (
    Decision,
    GiveUp,
    Heard,
    Outcome,
    Raised,
    Succeed,
    TryAgain,
    backoff,
    heard,
    why_dropped,
)
from retrofill.errors import shortened
from retrofill.log import get_log
from retrofill.masking import masked
from retrofill_core.bus import metrics
from retrofill_core.bus.envelope import ID_NAMESPACE
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.deadlines import (
    CallbackDropped,
    CallbackFailed,
    CallbackReplayRequested,
    CallbackSucceeded,
    FailedRun,
    RunsFailed,
)
from retrofill_core.contract.runs import ErrorInfo
from retrofill_core.contract.topics import Topic
from retrofill_core.deadlines import expanded
from retrofill_core.domain.backfill import show_command
from retrofill_core.domain.templates import in_zone
from retrofill_core.store import callbacks, deadlines, listed, receivers
from retrofill_core.store.callbacks import Callback, Claimed, Pending
from retrofill_core.store.receivers import Outage
from retrofill_core.store.sql import database_now


@dataclass(frozen=True, kw_only=True)
class Claim(Claimed):
    """A callback that this runner calls."""

    shard: int
    kwargs: dict[str, Any]
    event: dict[str, Any]
    # Since when an address, given as a hash, answers 410 Gone; ``None`` for a replay, which tries again.
    off_since: datetime | None
    off_address: str | None = None
    due_at: datetime
    # That for whose end it has waited long enough: it is given up.
    outage: Outage | None = None

    @property
    def idempotency_key(self) -> str:
        """The same for every try, so receivers can detect repeats."""
        return f"{self.deadline_id}:{self.name}"

    @property
    def event_type(self) -> str:
        return str(self.event.get("type", "DeadlineMissed"))

    @property
    def fields(self) -> dict[str, Any]:
        """The event with the callback's arguments."""
        return {**self._id, **self.event, "kwargs": self.kwargs}

    @property
    def context(self) -> dict[str, Any]:
        """The ``context`` argument of a function: the event's fields with those of this try."""
        call = {**self._id, "idempotency_key": self.idempotency_key, "attempt": self.attempts}
        return {**self.event, **call}

    @property
    def _id(self) -> dict[str, int]:
        return {"deadline_id" if self.occasion is None else "callback_id": self.deadline_id}

    @property
    def happened_at(self) -> datetime:
        """When the miss was decided, the digest was closed, or the backfill ended."""
        moments = (self.event.get(name) for name in ("detected_at", "closed_at", "ended_at"))
        text = next(filter(None, moments), None)
        return datetime.fromisoformat(text) if text else datetime.now(UTC)

    def message_id(self, installation: str) -> str:
        """The idempotency key as a webhook id, valid in headers and unique across installations."""
        return f"{self.deadline_id}-{uuid.uuid5(ID_NAMESPACE, f'{installation}:{self.idempotency_key}').hex}"


def claim_of(one: Pending, shard: int, outage: Outage | None = None) -> Claim:
    """A claim of a pending callback, with a new token."""
    return Claim(
        deadline_id=one.deadline_id,
        shard=shard,
        name=one.name,
        kind=one.kind,
        pipeline=one.pipeline,
        options=one.options,
        kwargs=one.kwargs,
        event=one.event,
        attempts=one.attempts + 1,
        runners_lost=one.runners_lost,
        token=uuid.uuid4().hex,
        off_since=None if one.replayed else one.off_since,
        off_address=one.off_address,
        occasion=one.occasion,
        backfill_id=one.backfill_id,
        due_at=one.due_at,
        outage=outage,
    )


log = get_log(__name__)
_OUTCOMES = {Succeed: "succeeded", GiveUp: "failed", TryAgain: "to_be_repeated"}


def record(tx: Transaction, tried: Claimed, decision: Decision, outcome: Outcome) -> bool:
    """Apply ``decision`` under the token. Returns False if another runner has the claim."""
    landed = _apply(tx, tried, decision)
    if landed and tried.has_receiver:
        _note_receiver(tx, tried, outcome)
    if landed and not isinstance(decision, TryAgain):
        wake_next(tx, [tried.deadline_id])
    tx.after_commit.append(partial(_log, tried, decision, landed=landed))
    return landed


def _apply(tx: Transaction, tried: Claimed, decision: Decision) -> bool:
    id, token = tried.deadline_id, tried.token
    match decision:
        case Succeed():
            landed = callbacks.succeed(tx.conn, id, token)
            if landed:
                tx.emit(Topic.CALLBACK_EVENTS, id, CallbackSucceeded(**_facts(tried)))
                # By a replay, or because the receiver has another address now.
                if isinstance(tried, Claim) and tried.off_address is not None:
                    callbacks.switch_on(tx.conn, tried.name)
        case GiveUp():
            landed = callbacks.fail(tx.conn, id, token, storable(decision.error), tried.runners_lost)
            if landed:
                _failed(tx, tried, decision)
        case TryAgain(error, seconds):
            landed = callbacks.try_again(tx.conn, id, token, storable(error), seconds, tried.runners_lost)
            if landed:
                # The shard's owner may be another instance.
                tx.notify(callbacks.CHANNEL, [tx.partition])
    return landed


def _note_receiver(tx: Transaction, tried: Claimed, outcome: Outcome) -> None:
    """Note whether the receiver is down: then others wait for it. Those that began before say no more than the first."""
    said = heard(outcome)
    if said is Heard.UP:
        tx.notify(callbacks.CHANNEL, receivers.came_up(tx.conn, tried.name))
    elif said is Heard.DOWN and isinstance(outcome, Raised):
        error, found = storable(outcome.error), receivers.tries_of(tx.conn, tried.name)
        if found is None:
            receivers.went_down(tx.conn, tried.name, error, max(outcome.after_seconds, backoff(1)))
            return
        tries, probe = found
        probed = probe == tried.deadline_id
        later = max(outcome.after_seconds, backoff(tries + 1) if probed else 0.0)
        receivers.still_down(tx.conn, tried.name, error, later, tries + probed)


def drop(tx: Transaction, pending: Sequence[Pending], reasons: Mapping[int, str]) -> None:
    """End locked callbacks that are not called, for these reasons."""
    callbacks.drop(tx.conn, reasons)
    for one in pending:
        why = reasons[one.deadline_id]
        tx.emit(Topic.CALLBACK_EVENTS, one.deadline_id, CallbackDropped(**_facts(one), message=why))
    wake_next(tx, reasons)


def wake_next(tx: Transaction, ended: Collection[int]) -> None:
    """Have those called that waited for these to end. Polls find what this misses."""
    tx.notify(callbacks.CHANNEL, callbacks.shards_in_order(tx.conn, ended))


def _failed(tx: Transaction, tried: Claimed, decision: GiveUp) -> None:
    """Publish the failure, and a dead letter whose replay repeats the call."""
    id, error = tried.deadline_id, storable(decision.error)
    tx.emit(Topic.CALLBACK_EVENTS, id, CallbackFailed(**_facts(tried), message=error, uncertain=decision.uncertain))
    tx.dead_letter_of(Topic.CALLBACK_REQUESTS, id, CallbackReplayRequested(deadline_id=id), _last_line(error))
    if decision.gone:
        callbacks.switch_off(tx.conn, tried.name, decision.gone, id)


def _facts(tried: Callback) -> dict[str, Any]:
    return {
        "deadline_id": tried.deadline_id,
        "callback": tried.label,
        "kind": tried.kind,
        "attempts": tried.attempts,
        "runners_lost": tried.runners_lost,
        "occasion": tried.occasion,
        "backfill_id": tried.backfill_id,
    }


def _log(tried: Claimed, decision: Decision, *, landed: bool) -> None:
    """Log and count each try exactly once, after its commit."""
    outcome = _OUTCOMES[type(decision)] if landed else "superseded"
    metrics.CALLBACKS.labels(tried.kind, outcome).inc()
    log.info(
        "callback_tried",
        deadline=tried.deadline_id,
        callback=tried.label,
        kind=tried.kind,
        attempt=tried.attempts,
        outcome=outcome,
        error=None if isinstance(decision, Succeed) else _last_line(decision.error),
    )


def storable(text: str) -> str:
    """``text`` without secrets, and without the characters that Postgres or UTF-8 cannot store."""
    return masked(text).replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _last_line(error: str) -> str:
    """The exception line of a traceback."""
    lines = error.strip().splitlines()
    return lines[-1] if lines else ""


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
    failed = [_failed_run(each) for each in listed.failed_runs(tx.conn, id, LISTED)]
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
    kwargs = expanded(one.kwargs, in_zone(_fields_of_failures(event), backfill.timezone), callback=id)
    body = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    listed.close(tx.conn, id, body, kwargs)
    tx.emit(Topic.CALLBACK_EVENTS, id, event)
    return replace(one, event=body, kwargs=kwargs, collects=False)


def _failed_run(run: listed.ListedFailure) -> FailedRun:
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


def _fields_of_failures(event: RunsFailed) -> dict[str, Any]:
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
