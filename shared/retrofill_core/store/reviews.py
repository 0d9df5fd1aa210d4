"""Queries for accepted output that waits for a review of its backfill.

A backfill counts its approvals, and a run notes for which review its output waits: it is approved once there are more
approvals than that. What somebody changed during a review, or what ran after it, waits for the next one.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
)

from retrofill_core.domain.run import RunState
from retrofill_core.store.arrays import one_of
from retrofill_core.store.states import constant, in_state
from retrofill_core.store.tables import backfill, run

# An older planner counts no approval.
_APPROVALS = case(
    (backfill.c.approved_at.is_(None), literal(0, Integer)),
    else_=func.greatest(backfill.c.approvals, literal(1, Integer)),
)
# Of a backfill: its accepted runs that wait for a lower review than this are published.
PUBLISHES_BELOW = case((backfill.c.review, _APPROVALS), else_=literal(1, Integer))
# Of a staged run and its backfill.
WAITS = and_(backfill.c.review, run.c.review >= _APPROVALS)
APPROVED = or_(~backfill.c.review, run.c.review < _APPROVALS)
_REVIEWED = select(backfill.c.id, _APPROVALS).where(one_of(backfill.c.id, "ids"), backfill.c.review)


def approvals(conn: Connection, ids: Collection[str]) -> dict[str, int]:
    """How often those of these backfills that are reviewed were approved."""
    return {row[0]: row[1] for row in conn.execute(_REVIEWED, {"ids": sorted(ids)})}


def staged_and(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether the backfill has such a staged run."""
    return (
        select(run.c.id).where(run.c.backfill_id == backfill.c.id, in_state(run, RunState.STAGED), condition).exists()
    )


_CHANGED = (
    select(run.c.interval_start)
    .where(
        run.c.backfill_id == bindparam("backfill"),
        in_state(run, RunState.STAGED),
        run.c.outputs.op("->>", return_type=Text())(constant("changed")).is_not(None),
    )
    .order_by(run.c.interval_start)
)


def changed(conn: Connection, backfill_id: str) -> list[datetime]:
    """Starts of the intervals whose output waits for a review again, because others changed what it would replace."""
    return list(conn.execute(_CHANGED, {"backfill": backfill_id}).scalars())
