"""The request that runs again what an ended backfill left undone."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update
from tests.support.both_stores import DAY, NOW, START, make_backfill, put
from tests.support.sessions import MemoryStore

from retrofill.client.again import requested_again
from retrofill.domain.backfill import ReprocessBehavior
from retrofill.store import tables as t


def ended(conn: Any, id: str, first: int, *states: str, **more: Any) -> None:
    """A backfill whose runs, the first one of day number ``first``, ended in these states."""
    make_backfill(conn, id, len(states), START + first * DAY)
    mine = select(t.run.c.id).where(t.run.c.backfill_id == id).order_by(t.run.c.position)
    for run, state in zip(conn.execute(mine).scalars().all(), states, strict=True):
        conn.execute(update(t.run).where(t.run.c.id == run).values(state=state, finished_at=NOW))
    conn.execute(update(t.backfill).where(t.backfill.c.id == id).values(state="failed", ended_at=NOW, **more))


@pytest.mark.parametrize(
    ("behavior", "again"),
    [("none", "failed"), ("failed", "failed"), ("completed", "completed")],
)
def test_what_was_to_replace_a_success_still_is_and_what_succeeded_since_is_left_out(behavior: str, again: str) -> None:
    def work(conn: Any) -> Any:
        ended(conn, "before", 0, "succeeded")
        ended(conn, "b1", 0, "cancelled", "failed", "succeeded", "failed", reprocess_behavior=behavior)
        ended(conn, "since", 1, "succeeded")
        row = conn.execute(select(t.backfill).where(t.backfill.c.id == "b1")).mappings().one()
        request = requested_again(conn, row, "ada")
        return request.reprocess_behavior == ReprocessBehavior(again), [*request.intervals]

    said = MemoryStore().play([put(), ("a", work)])[-1]
    assert said == [True, [START, START + 3 * DAY]]
