"""A wish to call a callback again that failed for good."""

from __future__ import annotations

from callback_runner.decide import why_not_replayed
from retrofill.bus.faults import Poison
from retrofill.bus.handler import Received
from retrofill.bus.transaction import Transaction
from retrofill.contract.deadlines import CallbackReplayed, CallbackReplayRejected, CallbackReplayRequested
from retrofill.contract.topics import Topic
from retrofill.store import callbacks


def replay(tx: Transaction, received: Received, wish: CallbackReplayRequested) -> None:
    """Make it wait for its first try again, and answer. Raises ``Poison`` where the key is another deadline's."""
    id = wish.deadline_id
    if received.key != str(id):
        raise Poison(f"the key is {received.key!r} and not the deadline's id, {id}: its owner would not read it")
    row = callbacks.replay(tx.conn, id)
    if row is None:
        why = why_not_replayed(callbacks.state_of(tx.conn, id))
        rejected = CallbackReplayRejected(deadline_id=id, message=f"callback of deadline {id}: {why}")
        tx.emit(Topic.CALLBACK_EVENTS, id, rejected, reply_to=received.record)
        return
    answer = CallbackReplayed(deadline_id=id, callback=row["name"], kind=row["kind"])
    tx.emit(Topic.CALLBACK_EVENTS, id, answer, reply_to=received.record)
