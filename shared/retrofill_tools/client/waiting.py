"""Why a running backfill has no run under way: others use the slots or seats that it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.run import RunState
from retrofill_core.store.pipelines import limit
from retrofill_core.store.rows import Backfill
from retrofill_core.store.tables import attempt, host, seat
from retrofill_tools.client.hosts import pools_of, serving

# At most so many of the backfills that others wait for are named.
NAMED = 3


def waits_for(conn: Connection, of: Backfill, pool: str, by_state: Mapping[str, int]) -> str | None:
    """The slots of its pipeline, or the seats of its pool, if others have all of them."""
    if of.state != BackfillState.RUNNING or not by_state.get(RunState.QUEUED):
        return None
    slots, seats = Counter[str](), Counter[str]()
    live = (
        select(attempt.c.backfill_id, attempt.c.pipeline_no, host.c.pool, func.count())
        .select_from(attempt.outerjoin(seat, seat.c.attempt_id == attempt.c.id).outerjoin(host))
        .where(attempt.c.slot.is_not(None))
        .group_by(attempt.c.backfill_id, attempt.c.pipeline_no, host.c.pool)
    )
    for id, no, where, number in conn.execute(live):
        slots[id] += number if no == of.pipeline_no else 0
        seats[id] += number if where == pool else 0
    if slots[of.id]:
        return None
    allowed = limit(conn, of.pipeline_no)
    if slots.total() >= allowed:
        return f"waits for a slot: {slots.total()} of {allowed} slots of pipeline {of.pipeline} are used by {_names(slots)}"
    (there,) = pools_of(serving(conn, pool), {pool: 0})
    if seats.total() and seats.total() >= there.slots:
        return f"waits for a seat: {seats.total()} of {there.slots} seats of pool {pool} are used by {_names(seats)}"
    return None


def _names(users: Counter[str]) -> str:
    """Those with most first."""
    most = [f"{id} ({number})" for id, number in users.most_common(NAMED) if number]
    more = sum(number > 0 for number in users.values()) - len(most)
    return f"{'backfills' if len(most) > 1 else 'backfill'} {', '.join(most)}{f' and {more:,} more' if more else ''}"
