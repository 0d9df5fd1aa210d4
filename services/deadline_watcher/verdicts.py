"""Judges deadlines whose runs are locked, and writes rows, events and callbacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple
from datetime import datetime

from deadline_watcher import events
from deadline_watcher.decide import Verdicts, decide, how_it_ended
from retrofill.system.crash import crash_point
from retrofill_core.bus.faults import Poison
from retrofill_core.bus.observability import metrics
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.base import Message
from retrofill_core.contract.deadlines import CallbackRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.deadline import DeadlineState, End
from retrofill_core.store import callbacks, deadlines, digests, subjects
from retrofill_core.store.callbacks import NewCallback
from retrofill_core.store.clock import database_now
from retrofill_core.store.deadlines import Deadline
from retrofill_core.store.digests import DigestKind
from retrofill_core.store.subjects import TaskEnds


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
            tx.emit(Topic.DEADLINE_MISSED, one.digest_id or one.id, events.recovered(one, recovered_at[one.id]))


def task_ends(tx: Transaction, watched: Sequence[Deadline]) -> TaskEnds:
    """The attempts of watched tasks, read under the locks of their runs."""
    pairs = {(one.run_id, one.task) for one in watched if one.run_id is not None and one.task is not None}
    return subjects.task_ends(tx.conn, pairs) if pairs else {}


def _miss(tx: Transaction, verdicts: Verdicts, tasks: TaskEnds, now: datetime) -> None:
    digest_of = _join_digests(tx, verdicts.missed)
    ending = [{"id": one.id, "digest_id": digest_of.get(one.id)} for one in verdicts.missed]
    landed = deadlines.end(tx.conn, DeadlineState.MISSED, ending, now)
    deadlines.recover(tx.conn, {id: at for id, at in verdicts.recovered.items() if id in landed})
    told = [one for one in verdicts.missed if one.id in landed]
    if not told:
        return
    backfills = subjects.backfill_facts(tx.conn, {one.backfill_id for one in told})
    calls = []
    for one in told:
        backfill = backfills[one.backfill_id]
        event = events.missed(one, backfill, tasks, now)
        if one.id in digest_of:
            # Its digest tells it. What its callback could not say must raise now, while it is armed: later its whole
            # digest would wait.
            if one.callback is not None:
                events.template_fields(event, backfill.timezone)
            continue
        tx.emit(Topic.DEADLINE_MISSED, one.id, event)
        if one.id in verdicts.recovered:
            tx.emit(Topic.DEADLINE_MISSED, one.id, events.recovered(one, verdicts.recovered[one.id]))
        if one.callback is not None:
            calls.append(events.callback(one, one.callback, event, event, backfill.timezone, now))
    call(tx, calls)
    crash_point("deadline:miss-written")
    tx.after_commit.append(lambda: crash_point("deadline:miss-committed"))


def call(tx: Transaction, calls: Sequence[NewCallback]) -> None:
    """Insert callbacks and request them from the runner."""
    callbacks.insert_all(tx.conn, calls)
    for each in calls:
        # The runner reads the row, so arguments too large for a message can be omitted.
        request: Message = CallbackRequested(deadline_id=each.deadline_id, callback=each.name, kwargs=each.kwargs)
        try:
            tx.emit(Topic.CALLBACK_REQUESTS, each.deadline_id, request)
        except Poison:
            request = CallbackRequested(deadline_id=each.deadline_id, callback=each.name)
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
