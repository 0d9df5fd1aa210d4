"""gather → decide → apply: at the next moment of a shard, and when the run of a deadline ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from deadline_watcher.decide import Row, decide, seconds_to_next
from retrofill.bus.faults import Poison
from retrofill.bus.handler import QuietHandler, Received
from retrofill.bus.service import Context
from retrofill.bus.topics import Topic
from retrofill.bus.transaction import Transaction
from retrofill.domain.deadline import DeadlineState
from retrofill.domain.pipeline import Reference
from retrofill.domain.run import RunState
from retrofill.messages.deadlines import CallbackRequested, DeadlineArmed, DeadlineMissed, DeadlineResolved
from retrofill.store import deadlines
from retrofill.store.clock import database_now

# The only thing that is looked at: the armed deadlines of the shard whose moment came.
DUE = "due"


class WatcherHandler(QuietHandler):
    """The deadline-watcher. It keeps nothing of its own: one probe of an index tells the next moment of a shard."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """Both messages are hints: what they lead to is decided from the rows."""
        resolved: set[int] = set()
        for one in received:
            match one.message:
                case DeadlineArmed():
                    tx.look_at(DUE)
                case DeadlineResolved(deadline_id=id):
                    resolved.add(id)
                case other:
                    raise Poison(f"a {type(other).__name__} does not belong on {one.record.topic}")
        if resolved:
            # A run that is locked is left to the moment itself.
            _apply(tx, deadlines.lock_named(tx.conn, tx.partition, resolved))

    def look(self, tx: Transaction, key: str) -> None:  # noqa: ARG002 - there is one key
        """Decide on what is due, and find out when the next moment is."""
        rows = deadlines.lock_due(tx.conn, tx.partition)
        _apply(tx, rows)
        earliest, now = deadlines.earliest(tx.conn, tx.partition)
        tx.look_at(DUE, seconds_to_next(earliest, now, more=len(rows) == deadlines.BATCH))

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:  # noqa: ARG002
        """Look at once: moments may have passed while nobody watched."""
        return {DUE: 0.0}


def _apply(tx: Transaction, rows: Sequence[Row]) -> None:
    """Judge deadlines whose runs are locked, and end, tell and call what follows."""
    if not rows:
        return
    now = database_now(tx.conn)
    verdicts = decide(rows, now)
    deadlines.end(tx.conn, DeadlineState.MET, [{"id": row["id"]} for row in verdicts.met], now)
    voids = [{"id": row["id"], "reason": reason} for row, reason in verdicts.void]
    deadlines.end(tx.conn, DeadlineState.VOID, voids, now)
    landed = deadlines.end(tx.conn, DeadlineState.MISSED, [{"id": row["id"]} for row in verdicts.missed], now)
    missed = [row for row in verdicts.missed if row["id"] in landed]
    called = [row for row in missed if row["callback"] is not None]
    if called:
        deadlines.insert_callbacks(tx.conn, [row["id"] for row in called])
    for row in missed:
        tx.emit(Topic.DEADLINE_MISSED, row["id"], _missed(row, now))
    for row in called:
        _request(tx, row)


def _missed(row: Row, now: datetime) -> DeadlineMissed:
    return DeadlineMissed(
        deadline_id=row["id"],
        alert=row["alert"],
        pipeline=row["pipeline"],
        backfill_id=row["backfill_id"],
        run_id=row["run_id"],
        interval_start=row["interval_start"],
        interval_end=row["interval_end"],
        reference=Reference(row["reference"]),
        due_at=row["due_at"],
        detected_at=now,
        run_state=RunState(row["run_state"]),
        run_attempt=row["run_attempt"],
        callback=row["callback"],
    )


def _request(tx: Transaction, row: Row) -> None:
    """The runner calls what the row says, so arguments too large for a message are no reason not to call."""
    try:
        tx.emit(
            Topic.CALLBACK_REQUESTS,
            row["id"],
            CallbackRequested(deadline_id=row["id"], callback=row["callback"], kwargs=row["kwargs"]),
        )
    except Poison:
        tx.emit(Topic.CALLBACK_REQUESTS, row["id"], CallbackRequested(deadline_id=row["id"], callback=row["callback"]))
