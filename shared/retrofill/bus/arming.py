"""Arming deadlines inside a shard's transaction: their rows, and a hint to the watcher where a moment is near."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from retrofill.bus import metrics
from retrofill.bus.topics import Topic
from retrofill.bus.transaction import Transaction
from retrofill.domain.alert import DeadlineAlert
from retrofill.domain.deadline import DeadlineState
from retrofill.messages.deadlines import DeadlineArmed, DeadlineResolved
from retrofill.store.arming import NewDeadline, Subject, insert_deadlines

# The watcher looks at its index at least this often; only deadlines due sooner need a hint.
NEAR_SECONDS = 120.0


@dataclass(frozen=True)
class Armer:
    """Arms deadlines of one backfill."""

    tx: Transaction
    backfill_id: str
    pipeline: str
    partitions: int
    now: datetime

    def arm(self, alert: DeadlineAlert, subjects: Sequence[Subject]) -> None:
        """Insert the deadlines of ``alert``, and wake the watchers of those that are near."""
        if not subjects:
            return
        new = insert_deadlines(self.tx.conn, self.backfill_id, self.pipeline, alert, subjects, self.partitions)
        self.tx.after_commit.append(lambda: _count(alert, new))
        for each in _first_of_each_shard(new, self.now):
            self.tx.emit(Topic.DEADLINES, each.id, DeadlineArmed(deadline_id=each.id, due_at=each.arming.due_at))


def resolve(tx: Transaction, deadline_ids: Iterable[int]) -> None:
    """Tell the watcher that what these deadlines are about ended, so that they need not wait for their moment."""
    for each in deadline_ids:
        tx.emit(Topic.DEADLINES, each, DeadlineResolved(deadline_id=each))


def _count(alert: DeadlineAlert, new: Sequence[NewDeadline]) -> None:
    for state in (DeadlineState.ARMED, DeadlineState.VOID):
        metrics.DEADLINES_ARMED.labels(alert.reference, state).inc(sum(n.arming.state == state for n in new))


def _first_of_each_shard(new: Sequence[NewDeadline], now: datetime) -> Iterable[NewDeadline]:
    """One hint a shard is enough: it makes the watcher find the earliest of all."""
    first: dict[int, NewDeadline] = {}
    for each in new:
        if each.arming.state == DeadlineState.ARMED and (each.arming.due_at - now).total_seconds() <= NEAR_SECONDS:
            known = first.get(each.shard)
            if known is None or each.arming.due_at < known.arming.due_at:
                first[each.shard] = each
    return first.values()
