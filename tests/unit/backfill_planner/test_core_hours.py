"""A budget of core-hours holds although the check that compares it passes over locked rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.support.both_stores import begin, make_backfill, put, start
from tests.support.sessions import MemoryStore, commit, rollback

from backfill_planner.endings import check
from backfill_planner.handler import PlannerHandler
from backfill_planner.progress import PROGRESS, announce
from retrofill_core.bus.handler import ALL_ACTIVE
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.topics import PLANNER
from retrofill_core.store import backfills
from retrofill_core.store import tables as t
from retrofill_core.store.rows import present


def with_an_expensive_attempt(conn: Any) -> None:
    make_backfill(conn, "b1")
    conn.execute(update(t.backfill).values(budget_core_hours=1.0))
    start(conn, 1, 1)
    begin(conn, 1, 1)
    conn.execute(update(t.attempt).values(core_seconds=3600.0))


def announced(conn: Any) -> Any:
    """Announce and check as the planner does. Returns the types of the events, and the state."""
    tx = Transaction(conn, PLANNER, 0, 0, 900_000)
    for id in announce(tx, ["b1"]):
        check(tx, id, 1)
    types = [(dict(row.headers)["ce_type"] or b"").decode() for row in tx.outgoing]
    return types, conn.execute(select(t.backfill.c.state)).scalar_one()


def test_a_budget_whose_backfill_was_locked_is_compared_again() -> None:
    *_, locked, _, _, again, _ = MemoryStore().play(
        [
            put(),
            ("a", with_an_expensive_attempt),
            ("a", commit),
            # As a claim of the run-starter does.
            ("b", lambda conn: present(backfills.lock(conn, "b1", wait=True)).id),
            ("a", announced),
            ("a", commit),
            ("b", rollback),
            ("a", announced),
            ("a", commit),
        ]
    )
    assert locked == [["BackfillProgress"], "running"]
    # Nothing else has changed, so nothing is announced.
    assert again == [["BackfillStateChanged", "BackfillPaused"], "paused"]


@pytest.mark.parametrize(("hours", "compared"), [(1.0, True), (None, False)])
def test_every_minute_it_is_compared_whatever_was_missed(hours: float | None, compared: bool) -> None:
    context: Any = SimpleNamespace(settings=SimpleNamespace(max_plan_runs=9), topic_ids={})

    def swept(conn: Any) -> Any:
        make_backfill(conn, "b1")
        conn.execute(update(t.backfill).values(budget_core_hours=hours))
        tx = Transaction(conn, PLANNER, 0, 0, 900_000)
        PlannerHandler(context).check(tx, [ALL_ACTIVE])
        return PROGRESS in tx.checks

    assert MemoryStore().play([put(), ("a", swept)])[-1] == compared
