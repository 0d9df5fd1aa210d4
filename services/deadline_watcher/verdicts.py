"""Judges deadlines whose runs are locked, and writes rows, events and callbacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple
from datetime import datetime

from deadline_watcher import events
from deadline_watcher.decide import Row, TaskEnds, Verdicts, decide, how_it_ended
from retrofill.system.crash import crash_point
from retrofill_core.bus.faults import Poison
from retrofill_core.bus.observability import metrics
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.base import Message
from retrofill_core.contract.deadlines import CallbackRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.deadline import DeadlineState, End
from retrofill_core.domain.templates import in_zone
from retrofill_core.store import callbacks, deadlines, digests, subjects
from retrofill_core.store.clock import database_now
from retrofill_core.store.digests import Kind


def apply_verdicts(tx: Transaction, rows: Sequence[Row]) -> None:
    """Judge armed deadlines, end them, and write the events and callbacks of misses."""
    if not rows:
        return
    tasks = task_ends(tx, rows)
    now = database_now(tx.conn)
    verdicts = decide(rows, tasks, now)
    crash_point("deadline:judged")
    deadlines.end(tx.conn, DeadlineState.MET, [{"id": row["id"]} for row in verdicts.met], now)
    voids = [{"id": row["id"], "reason": reason} for row, reason in verdicts.void]
    deadlines.end(tx.conn, DeadlineState.VOID, voids, now)
    _miss(tx, verdicts, tasks, now)
    tx.after_commit.append(lambda: _count(verdicts, now))


def _count(verdicts: Verdicts, now: datetime) -> None:
    for state, rows in (("met", verdicts.met), ("void", verdicts.void), ("missed", verdicts.missed)):
        metrics.DEADLINES_DECIDED.labels(state).inc(len(rows))
    metrics.DEADLINES_RECOVERED.inc(len(verdicts.recovered))
    for row in verdicts.missed:
        metrics.DETECTION_DELAY.observe((now - row["due_at"]).total_seconds())


def recover(tx: Transaction, rows: Sequence[Row]) -> None:
    """Mark missed deadlines as recovered if their run, task or backfill has succeeded since."""
    tasks = task_ends(tx, rows)
    recovered_at: dict[int, datetime] = {}
    for row in rows:
        ended, ended_at = how_it_ended(row, tasks)
        if ended == End.SUCCEEDED and ended_at is not None:
            recovered_at[row["id"]] = ended_at
    # An open digest will list the recovery with the miss.
    held = digests.hold_open(
        tx.conn, {row["digest_id"] for row in rows if row["id"] in recovered_at and row["digest_id"]}
    )
    landed = deadlines.recover(tx.conn, recovered_at)
    tx.after_commit.append(lambda: metrics.DEADLINES_RECOVERED.inc(len(landed)))
    for row in rows:
        if row["id"] in landed and row["digest_id"] not in held:
            # With the key of its digest, so it follows the digest.
            tx.emit(
                Topic.DEADLINE_MISSED, row["digest_id"] or row["id"], events.recovered(row, recovered_at[row["id"]])
            )


def task_ends(tx: Transaction, rows: Sequence[Row]) -> TaskEnds:
    """The attempts of watched tasks, read under the locks of their runs."""
    pairs = {(row["run_id"], row["task"]) for row in rows if row["task"] is not None}
    return subjects.task_ends(tx.conn, pairs) if pairs else {}


def _miss(tx: Transaction, verdicts: Verdicts, tasks: TaskEnds, now: datetime) -> None:
    digest_of = _join_digests(tx, verdicts.missed)
    ending = [{"id": row["id"], "digest_id": digest_of.get(row["id"])} for row in verdicts.missed]
    landed = deadlines.end(tx.conn, DeadlineState.MISSED, ending, now)
    deadlines.recover(tx.conn, {id: at for id, at in verdicts.recovered.items() if id in landed})
    told = [row for row in verdicts.missed if row["id"] in landed]
    if not told:
        return
    backfills = subjects.backfill_facts(tx.conn, {row["backfill_id"] for row in told})
    calls = []
    for row in told:
        fields = events.facts(row, backfills[row["backfill_id"]], tasks, now)
        event = events.missed(row, fields)
        if row["id"] in digest_of:
            # Its digest tells it. What its callback could not say must raise now, while it is armed: later its whole
            # digest would wait.
            if row["callback"] is not None:
                in_zone(fields, backfills[row["backfill_id"]].timezone)
            continue
        tx.emit(Topic.DEADLINE_MISSED, row["id"], event)
        if row["id"] in verdicts.recovered:
            tx.emit(Topic.DEADLINE_MISSED, row["id"], events.recovered(row, verdicts.recovered[row["id"]]))
        if row["callback"] is not None:
            calls.append(events.callback(row, fields, event, backfills[row["backfill_id"]].timezone))
    call(tx, calls)
    crash_point("deadline:miss-written")
    tx.after_commit.append(lambda: crash_point("deadline:miss-committed"))


def call(tx: Transaction, calls: Sequence[Row]) -> None:
    """Insert callbacks and request them from the runner."""
    callbacks.insert_all(tx.conn, tx.partition, calls)
    for each in calls:
        _emit(tx, each["deadline_id"], each["name"], each["kwargs"])


def _emit(tx: Transaction, id: int, name: str, kwargs: dict[str, object]) -> None:
    """The runner reads the row, so arguments too large for a message can be omitted."""
    request: Message = CallbackRequested(deadline_id=id, callback=name, kwargs=kwargs)
    try:
        tx.emit(Topic.CALLBACK_REQUESTS, id, request)
    except Poison:
        tx.emit(Topic.CALLBACK_REQUESTS, id, CallbackRequested(deadline_id=id, callback=name))


def _join_digests(tx: Transaction, missed: Sequence[Row]) -> dict[int, int]:
    """The digest of each missed deadline that has one. Sorted by kind, as a lock order."""
    by_kind: dict[Kind, list[int]] = {}
    for row in missed:
        if row["digest_seconds"] is not None:
            by_kind.setdefault(kind_of(row), []).append(row["id"])
    joined: dict[int, int] = {}
    for kind, ids in sorted(by_kind.items(), key=lambda item: astuple(item[0])):
        into = digests.join(tx.conn, kind, ids[0], tx.partition)
        joined.update(dict.fromkeys(ids, into))
    return joined


def kind_of(row: Row) -> Kind:
    """Misses of the same kind share a digest: same alert, callback and arguments."""
    fields = [row[name] for name in ("callback", "callback_kind", "callback_options", "kwargs", "digest_seconds")]
    target = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
    return Kind(row["pipeline"], row["alert"], target, row["digest_seconds"])
