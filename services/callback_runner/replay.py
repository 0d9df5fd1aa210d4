"""Requests to replay a callback that failed permanently."""

from __future__ import annotations

from callback_runner.decide import why_not_replayed
from retrofill_core.bus.faults import Poison
from retrofill_core.bus.handler import Received
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.deadlines import CallbackReplayed, CallbackReplayRejected, CallbackReplayRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.store import callbacks


def replay(tx: Transaction, received: Received, request: CallbackReplayRequested) -> None:
    """Make the callback pending again and reply. Raises ``Poison`` for a wrong key."""
    id = request.deadline_id
    if received.key != str(id):
        raise Poison(f"the key {received.key!r} differs from the callback's id {id}: use the id as the key")
    row = callbacks.replay(tx.conn, id)
    if row is None:
        why = why_not_replayed(callbacks.state_of(tx.conn, id))
        rejected = CallbackReplayRejected(deadline_id=id, message=f"callback {id}: {why}")
        tx.emit(Topic.CALLBACK_EVENTS, id, rejected, reply_to=received.record)
        return
    answer = CallbackReplayed(
        deadline_id=id,
        callback=row["name"],
        kind=row["kind"],
        occasion=row["occasion"],
        backfill_id=row["backfill_id"],
    )
    tx.emit(Topic.CALLBACK_EVENTS, id, answer, reply_to=received.record)
