"""Arming deadlines in a shard's transaction: the rows, and hints for those due soon."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from retrofill_core.bus.observability import metrics
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.deadlines import DeadlineArmed, DeadlineResolved
from retrofill_core.contract.partitioning import partition_of
from retrofill_core.contract.topics import Topic
from retrofill_core.deadlines.inserting import NewDeadline, Subject, insert_deadlines, insert_planned, reserve_ids
from retrofill_core.domain.alert import DeadlineAlert
from retrofill_core.domain.deadline import DeadlineState, Due
from retrofill_core.store.arrays import CHUNK

# The watcher rereads its index at least this often; only deadlines due sooner need a hint.
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
        """Insert the deadlines of ``alert``, with a hint for each shard that has one due soon."""
        if not subjects:
            return
        new = insert_deadlines(self.tx.conn, self.backfill_id, self.pipeline, alert, subjects, self.partitions)
        states = Counter(each.arming.state for each in new)
        self.tx.after_commit.append(lambda: _count(alert, states))
        for each in _first_of_each_shard(new, self.now):
            self.tx.emit(Topic.DEADLINES, each.id, DeadlineArmed(deadline_id=each.id, due_at=each.arming.due_at))

    def arm_planned(self, alert: DeadlineAlert, due: Due, starts: Sequence[datetime]) -> None:
        """Arm ``alert`` for all runs of a plan, with logical dates ``starts`` in start order.

        Only ids pass through this process, in chunks; Postgres computes the rows and moments.
        """
        ids = reserve_ids(self.tx.conn, len(starts))
        for first in range(0, len(starts), CHUNK):
            insert_planned(
                self.tx.conn,
                self.backfill_id,
                self.pipeline,
                alert,
                due,
                first,
                ids[first : first + CHUNK],
                self.partitions,
            )
        now = self.now if not alert.fire_if_past else None
        armed = _between(starts, due, now, None)
        states = {DeadlineState.ARMED: len(armed), DeadlineState.VOID: len(starts) - len(armed)}
        self.tx.after_commit.append(lambda: _count(alert, states))
        near = _between(starts, due, now, self.now + timedelta(seconds=NEAR_SECONDS))
        hinted: set[int] = set()
        for place in near:
            shard = partition_of(str(ids[place]), self.partitions)
            if shard not in hinted:
                hinted.add(shard)
                self.tx.emit(
                    Topic.DEADLINES, ids[place], DeadlineArmed(deadline_id=ids[place], due_at=due.at(starts[place]))
                )
            if len(hinted) == self.partitions:
                break


def resolve(tx: Transaction, deadline_ids: Iterable[int]) -> None:
    """Hint to the watcher that what these deadlines watch has ended, so they can be decided now."""
    for each in deadline_ids:
        tx.emit(Topic.DEADLINES, each, DeadlineResolved(deadline_id=each))


def _count(alert: DeadlineAlert, new: Mapping[DeadlineState, int]) -> None:
    for state in (DeadlineState.ARMED, DeadlineState.VOID):
        metrics.DEADLINES_ARMED.labels(alert.reference, state).inc(new.get(state, 0))


def _between(starts: Sequence[datetime], due: Due, after: datetime | None, until: datetime | None) -> range:
    """Positions of runs with deadlines due in (``after``, ``until``], found by bisection."""
    rises = len(starts) < 2 or starts[0] < starts[-1]
    places = range(len(starts)) if rises else range(len(starts) - 1, -1, -1)
    low = 0 if after is None else bisect_right(places, after, key=lambda place: due.at(starts[place]))
    high = len(places) if until is None else bisect_right(places, until, key=lambda place: due.at(starts[place]))
    return places[low : max(low, high)]


def _first_of_each_shard(new: Sequence[NewDeadline], now: datetime) -> Iterable[NewDeadline]:
    """Each shard's earliest near deadline: with one hint, the watcher finds the others."""
    first: dict[int, NewDeadline] = {}
    for each in new:
        if each.arming.state == DeadlineState.ARMED and (each.arming.due_at - now).total_seconds() <= NEAR_SECONDS:
            known = first.get(each.shard)
            if known is None or each.arming.due_at < known.arming.due_at:
                first[each.shard] = each
    return first.values()
