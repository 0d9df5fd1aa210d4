"""Publishes the state of backfills and how far they are: ``BackfillProgress`` at most once in five seconds for each.

Events of runs only mark a backfill; one check of the shard reads the marked ones together. What the
counts of the last event were is stored, so that nothing is announced twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from retrofill_core.bus.faults import Conflict
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import BackfillProgress
from retrofill_core.contract.base import Cost
from retrofill_core.contract.runs import BackfillStateChanged
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import BackfillState, Spent, used_up
from retrofill_core.domain.estimate import Estimate
from retrofill_core.domain.run import RunState
from retrofill_core.store import backfills
from retrofill_core.store import progress as store
from retrofill_core.store.progress import Announced
from retrofill_core.store.rows import Backfill
from retrofill_core.store.sql import database_now


def move(
    tx: Transaction,
    row: Backfill,
    to: BackfillState,
    values: Mapping[str, Any],
    by_state: Mapping[str, int] | None = None,
) -> None:
    """Move a locked backfill to ``to``. ``values``: columns to set; ``by_state``: its runs. Raises ``Conflict``."""
    if not backfills.move(tx.conn, row.id, to, row.state, values):
        raise Conflict(f"backfill {row.id} is no longer {row.state.replace('_', ' ')}")
    record = BackfillStateChanged(
        backfill_id=row.id,
        pipeline=row.pipeline,
        state=to,
        range_start=row.covers.lower,
        range_end=row.covers.upper,
        runs=row.runs,
        undoes=row.undoes,
        runs_by_state=dict(by_state or {}),
        requested_at=row.requested_at,
        at=values.get("ended_at") or database_now(tx.conn),
    )
    tx.emit(Topic.BACKFILL_STATES, row.id, record)


# The key of the check. No id contains a line break.
PROGRESS = "\nprogress"
EVERY_SECONDS = 5.0
# Between two checks of a shard, and the most backfills of one.
PAUSE_SECONDS, MOST = 1.0, 50


class Announcer:
    """The backfills of each shard to announce, and since when each may be."""

    def __init__(self) -> None:
        self._due: dict[int, dict[str, float]] = {}

    def changed(self, partition: int, ids: Iterable[str]) -> bool:
        """Announce these in five seconds, unless already due. Returns whether there are any."""
        due, later = self._due.setdefault(partition, {}), time.monotonic() + EVERY_SECONDS
        for id in ids:
            due.setdefault(id, later)
        return bool(due)

    def forget(self, partition: int) -> None:
        self._due.pop(partition, None)

    def check(self, tx: Transaction) -> Sequence[str]:
        """Announce what changed, of those due. Returns the ids whose budget is used up."""
        due, now = self._due.setdefault(tx.partition, {}), time.monotonic()
        chosen = sorted((id for id, moment in due.items() if moment <= now), key=lambda id: due[id])[:MOST]
        left = [due[id] for id in due.keys() - chosen]
        # Until it committed: one that failed, or of which nobody knows, is repeated later.
        due.update(dict.fromkeys(chosen, now + 2 * EVERY_SECONDS))
        tx.after_commit.append(lambda: _forget(due, chosen))
        if left:
            tx.schedule_check(PROGRESS, max(PAUSE_SECONDS, min(left) - now))
        return announce(tx, chosen) if chosen else ()


def _forget(due: dict[str, float], ids: Sequence[str]) -> None:
    for id in ids:
        due.pop(id, None)


def announce(tx: Transaction, ids: Sequence[str]) -> Sequence[str]:
    """Announce the progress of those whose counts differ from the last time.

    Returns the ids whose budget is used up.
    """
    rows = store.announced(tx.conn, ids)
    counts = store.counts(tx.conn, [row.id for row in rows])
    changed = [row for row in rows if row.runs_by_state != counts[row.id]]
    limited = [row for row in rows if row.budget_core_hours is not None]
    if not changed and not limited:
        return ()
    now = database_now(tx.conn)
    costs = store.costs(tx.conn, {row.id for row in (*changed, *limited)})
    if changed:
        _announce(tx, changed, counts, costs, now)
    return [row.id for row in rows if _used_up(row, counts[row.id], costs.get(row.id, {}), now)]


def _announce(
    tx: Transaction,
    rows: Sequence[Announced],
    counts: Mapping[str, Mapping[str, int]],
    costs: Mapping[str, Mapping[str, Any]],
    now: datetime,
) -> None:
    estimates = store.estimates(tx.conn, rows, counts, now)
    new = []
    for row in rows:
        id = row.id
        sequence = (row.sequence or 0) + 1
        new.append({"backfill_id": id, "sequence": sequence, "runs": counts[id]})
        cost = Cost(**costs[id]) if id in costs else None
        facts = {"sequence": sequence, "at": now, "runs": row.runs, "runs_by_state": counts[id], "cost": cost}
        event = BackfillProgress(backfill_id=id, pipeline=row.pipeline, **facts, **_ends(estimates.get(id), now))
        tx.emit(Topic.BACKFILL_EVENTS, id, event, linger=True)
    store.put(tx.conn, new)


def _used_up(row: Announced, by_state: Mapping[str, int], cost: Mapping[str, Any], now: datetime) -> bool:
    """Whether its budget is, which a check of it decides."""
    budget = backfills.budget_of(row)
    spent = Spent(by_state.get(RunState.FAILED, 0), cost.get("core_seconds") or 0.0, now)
    return row.state == BackfillState.RUNNING and budget is not None and used_up(budget, spent) is not None


def _ends(found: Estimate | None, now: datetime) -> dict[str, Any]:
    """The fields of the estimate."""
    if found is None:
        return {}
    return {
        "runs_per_second": round(found.runs_per_second, 4),
        "estimated_end": now + timedelta(seconds=found.seconds),
        "earliest_end": now + timedelta(seconds=found.low),
        "latest_end": now + timedelta(seconds=found.high),
    }
