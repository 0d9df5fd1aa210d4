"""Judges deadlines whose runs are locked: builds the messages about missed ones, writes rows, events and callbacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime
from typing import Any

from deadline_watcher.decide import Verdicts, decide, how_it_ended, state_of
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.faults import Poison
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.base import Message
from retrofill_core.contract.deadlines import (
    CallbackRequested,
    DeadlineFacts,
    DeadlineMissed,
    DeadlineRecovered,
    DeadlinesMissed,
)
from retrofill_core.contract.topics import Topic
from retrofill_core.deadlines import expanded
from retrofill_core.domain.callback import order_key, shown
from retrofill_core.domain.deadline import DeadlineState, End, Reference, Scope
from retrofill_core.domain.templates import in_zone
from retrofill_core.store import callbacks, deadlines, digests
from retrofill_core.store.callbacks import NewCallback
from retrofill_core.store.deadlines import BackfillFacts, Deadline, TaskEnds
from retrofill_core.store.digests import DigestKind, Window
from retrofill_core.store.sql import database_now

# Upper bound for a digest without its list: names, times, and a host's name.
HEAD_BYTES = 10_000


def missed(one: Deadline, backfill: BackfillFacts, tasks: TaskEnds, now: datetime) -> DeadlineMissed:
    """The event of a deadline that is found missed ``now``."""
    return DeadlineMissed(**_facts(one, backfill, tasks, now), callback=one.label)


def in_digest(one: Deadline, backfill: BackfillFacts, tasks: TaskEnds) -> DeadlineFacts:
    """What a digest lists about one of its misses."""
    return DeadlineFacts(**_facts(one, backfill, tasks, one.decided_at), recovered_at=one.recovered_at)


def _facts(one: Deadline, backfill: BackfillFacts, tasks: TaskEnds, detected_at: datetime | None) -> dict[str, Any]:
    return {
        "deadline_id": one.id,
        "alert": one.alert,
        "scope": one.scope,
        "pipeline": one.pipeline,
        "backfill_id": one.backfill_id,
        "run_id": one.run_id,
        "task": one.task,
        "interval_start": one.interval_start,
        "interval_end": one.interval_end,
        "reference": Reference(one.reference),
        "interval_seconds": one.interval_seconds,
        "due_at": one.due_at,
        "detected_at": detected_at,
        "run_state": state_of(one, tasks),
        "run_attempt": one.run_attempt,
        "runs_done": backfill.runs_done,
        "runs": backfill.runs,
    }


def digest(
    window: Window, callback: str | None, missed: Sequence[DeadlineFacts], count: int, now: datetime, max_bytes: int
) -> list[DeadlinesMissed]:
    """The event of a window's ``count`` misses, in parts of at most ``max_bytes``."""
    parts = list(_parts(missed, max_bytes - HEAD_BYTES))
    return [
        DeadlinesMissed(
            digest_id=window.id,
            alert=window.alert,
            pipeline=window.pipeline,
            opened_at=window.opened_at,
            closed_at=now,
            count=count,
            not_listed=count - len(missed),
            part=number,
            parts=len(parts),
            missed=part,
            callback=callback,
        )
        for number, part in enumerate(parts, 1)
    ]


def _parts(missed: Sequence[DeadlineFacts], max_bytes: int) -> Iterable[list[DeadlineFacts]]:
    part: list[DeadlineFacts] = []
    size = 0
    for each in missed:
        length = len(each.model_dump_json(exclude_none=True).encode()) + 1
        if part and size + length > max_bytes:
            yield part
            part, size = [], 0
        part.append(each)
        size += length
    if part:
        yield part


def recovered(one: Deadline, at: datetime) -> DeadlineRecovered:
    """The event of a missed deadline whose run, task or backfill succeeded later."""
    return DeadlineRecovered(
        deadline_id=one.id,
        alert=one.alert,
        scope=one.scope,
        pipeline=one.pipeline,
        backfill_id=one.backfill_id,
        run_id=one.run_id,
        task=one.task,
        interval_start=one.interval_start,
        interval_end=one.interval_end,
        due_at=one.due_at,
        recovered_at=at,
        late_seconds=(at - one.due_at).total_seconds(),
    )


def callback(
    one: Deadline, name: str, about: DeadlineFacts, event: Message, timezone: str, now: datetime, count: int = 1
) -> NewCallback:
    """The callback ``name`` of a miss, or of a digest whose first miss is ``one``; it is called with ``event``."""
    # A digest may be about many backfills.
    of_backfill = one.scope == Scope.BACKFILL and one.digest_id is None
    return NewCallback(
        deadline_id=one.id,
        shard=one.shard,
        name=name,
        kind=one.callback_kind,
        options=one.callback_options,
        kwargs=expanded(one.kwargs, template_fields(about, timezone, count), deadline=one.id),
        event=event.model_dump(mode="json", by_alias=True, exclude_none=True),
        pipeline=one.pipeline,
        next_try_at=now,
        order_key=order_key(one.callback_kind, name, one.callback_options, one.backfill_id) if of_backfill else None,
    )


def template_fields(about: DeadlineFacts, timezone: str, count: int = 1) -> Mapping[str, Any]:
    """The fields that templates may refer to, with times in the pipeline's time zone."""
    fields = {
        "deadline.id": about.deadline_id,
        "deadline.alert": about.alert,
        "deadline.reference": str(about.reference),
        "deadline.due_at": about.due_at,
        "deadline.detected_at": about.detected_at,
        "deadline.late_seconds": (about.detected_at - about.due_at).total_seconds(),
        "pipeline": about.pipeline,
        "backfill.id": about.backfill_id,
        "backfill.runs": about.runs,
        "backfill.runs_done": about.runs_done,
        "run.id": about.run_id,
        "run.logical_date": about.interval_start,
        "run.interval_start": about.interval_start,
        "run.interval_end": about.interval_end,
        "run.state": about.run_state,
        "run.attempt": about.run_attempt,
        "task": about.task,
        "digest.count": count,
    }
    return in_zone(fields, timezone)


def apply_verdicts(tx: Transaction, armed: Sequence[Deadline]) -> None:
    """Judge armed deadlines, end them, and write the events and callbacks of misses."""
    if not armed:
        return
    tasks = task_ends(tx, armed)
    now = database_now(tx.conn)
    verdicts = decide(armed, tasks, now)
    crash_point("deadline:judged")
    deadlines.end(tx.conn, DeadlineState.MET, [{"id": one.id} for one in verdicts.met], now)
    voids = [{"id": one.id, "reason": reason} for one, reason in verdicts.void]
    deadlines.end(tx.conn, DeadlineState.VOID, voids, now)
    _miss(tx, verdicts, tasks, now)
    tx.after_commit.append(lambda: _count(verdicts, now))


def _count(verdicts: Verdicts, now: datetime) -> None:
    for state, decided in (("met", verdicts.met), ("void", verdicts.void), ("missed", verdicts.missed)):
        metrics.DEADLINES_DECIDED.labels(state).inc(len(decided))
    metrics.DEADLINES_RECOVERED.inc(len(verdicts.recovered))
    for one in verdicts.missed:
        metrics.DETECTION_DELAY.observe((now - one.due_at).total_seconds())


def recover(tx: Transaction, late: Sequence[Deadline]) -> None:
    """Mark missed deadlines as recovered if their run, task or backfill has succeeded since."""
    tasks = task_ends(tx, late)
    recovered_at: dict[int, datetime] = {}
    for one in late:
        ended, ended_at = how_it_ended(one, tasks)
        if ended == End.SUCCEEDED and ended_at is not None:
            recovered_at[one.id] = ended_at
    # An open digest will list the recovery with the miss.
    held = digests.hold_open(tx.conn, {one.digest_id for one in late if one.id in recovered_at and one.digest_id})
    landed = deadlines.recover(tx.conn, recovered_at)
    tx.after_commit.append(lambda: metrics.DEADLINES_RECOVERED.inc(len(landed)))
    for one in late:
        if one.id in landed and one.digest_id not in held:
            # With the key of its digest, so it follows the digest.
            tx.emit(Topic.DEADLINE_MISSED, one.digest_id or one.id, recovered(one, recovered_at[one.id]))


def task_ends(tx: Transaction, watched: Sequence[Deadline]) -> TaskEnds:
    """The attempts of watched tasks, read under the locks of their runs."""
    pairs = {(one.run_id, one.task) for one in watched if one.run_id is not None and one.task is not None}
    return deadlines.task_ends(tx.conn, pairs) if pairs else {}


def _miss(tx: Transaction, verdicts: Verdicts, tasks: TaskEnds, now: datetime) -> None:
    digest_of = _join_digests(tx, verdicts.missed)
    ending = [{"id": one.id, "digest_id": digest_of.get(one.id)} for one in verdicts.missed]
    landed = deadlines.end(tx.conn, DeadlineState.MISSED, ending, now)
    deadlines.recover(tx.conn, {id: at for id, at in verdicts.recovered.items() if id in landed})
    told = [one for one in verdicts.missed if one.id in landed]
    if not told:
        return
    backfills = deadlines.backfill_facts(tx.conn, {one.backfill_id for one in told})
    calls = []
    for one in told:
        backfill = backfills[one.backfill_id]
        event = missed(one, backfill, tasks, now)
        if one.id in digest_of:
            # Its digest tells it. What its callback could not say must raise now, while it is armed: later its whole
            # digest would wait.
            if one.callback is not None:
                template_fields(event, backfill.timezone)
            continue
        tx.emit(Topic.DEADLINE_MISSED, one.id, event)
        if one.id in verdicts.recovered:
            tx.emit(Topic.DEADLINE_MISSED, one.id, recovered(one, verdicts.recovered[one.id]))
        if one.callback is not None:
            calls.append(callback(one, one.callback, event, event, backfill.timezone, now))
    call(tx, calls)
    crash_point("deadline:miss-written")
    tx.after_commit.append(lambda: crash_point("deadline:miss-committed"))


def call(tx: Transaction, calls: Sequence[NewCallback]) -> None:
    """Insert callbacks and request them from the runner."""
    callbacks.insert_all(tx.conn, calls)
    for each in calls:
        label = shown(each.kind, each.name)
        # The runner reads the row, so arguments too large for a message can be omitted.
        request: Message = CallbackRequested(deadline_id=each.deadline_id, callback=label, kwargs=each.kwargs)
        try:
            tx.emit(Topic.CALLBACK_REQUESTS, each.deadline_id, request)
        except Poison:
            request = CallbackRequested(deadline_id=each.deadline_id, callback=label)
            tx.emit(Topic.CALLBACK_REQUESTS, each.deadline_id, request)


def _join_digests(tx: Transaction, missed: Sequence[Deadline]) -> dict[int, int]:
    """The digest of each missed deadline that has one. Sorted by kind, as a lock order."""
    by_kind: dict[DigestKind, list[int]] = {}
    for one in missed:
        kind = kind_of(one)
        if kind is not None:
            by_kind.setdefault(kind, []).append(one.id)
    joined: dict[int, int] = {}
    for kind, ids in sorted(by_kind.items(), key=lambda item: astuple(item[0])):
        into = digests.join(tx.conn, kind, ids[0], tx.partition)
        joined.update(dict.fromkeys(ids, into))
    return joined


def kind_of(one: Deadline) -> DigestKind | None:
    """Misses of the same kind share a digest: same alert, callback and arguments. ``None``: its alert has no digests."""
    if one.digest_seconds is None:
        return None
    fields = [one.callback, one.callback_kind, one.callback_options, one.kwargs, one.digest_seconds]
    target = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
    return DigestKind(one.pipeline, one.alert, target, one.digest_seconds)
