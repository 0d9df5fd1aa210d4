"""Why a running backfill has no run under way: others use the slots or seats that it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.run import RunState
from retrofill_core.store import write_locks
from retrofill_core.store.pipelines import limit
from retrofill_core.store.rows import Backfill
from retrofill_core.store.tables import attempt, host, seat
from retrofill_tools.client.hosts import find_hosts, pools_of, serving
from retrofill_tools.client.pipelines import StoredDefinition

# At most so many of the backfills that others wait for are named.
NAMED = 3


def waits_for(conn: Connection, of: Backfill, definition: StoredDefinition, by_state: Mapping[str, int]) -> str | None:
    """What it writes, the slots of its pipeline, or the seats of its pool, if others have all of them."""
    if of.state != BackfillState.RUNNING or not by_state.get(RunState.QUEUED):
        return None
    if (writer := _writer(conn, of, definition)) is not None:
        return writer
    pool, slots, seats = definition.pool, Counter[str](), Counter[str]()
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
    (there,) = pools_of(serving(find_hosts(conn), pool), {pool: 0})
    if seats.total() and seats.total() >= there.slots:
        return f"waits for a seat: {seats.total()} of {there.slots} seats of pool {pool} are used by {_names(seats)}"
    return None


def _writer(conn: Connection, of: Backfill, definition: StoredDefinition) -> str | None:
    """The backfill whose attempt writes what this one writes, too: they take turns."""
    names = () if of.undoes is not None else definition.unstaged
    held = write_locks.held(conn, names) if names else []
    if not held or any(each.backfill_id == of.id for each in held):
        return None
    first = held[0]
    return f"waits to write {first.name}, which backfill {first.backfill_id} writes: they take turns"


def _names(users: Counter[str]) -> str:
    """Those with most first."""
    most = [f"{id} ({number})" for id, number in users.most_common(NAMED) if number]
    more = sum(number > 0 for number in users.values()) - len(most)
    return f"{'backfills' if len(most) > 1 else 'backfill'} {', '.join(most)}{f' and {more:,} more' if more else ''}"
