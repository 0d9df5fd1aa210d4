"""A callback that cannot be claimed, or whose dead runner cannot be recorded, holds no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Update, select
from tests.support.both_stores import BASE, NOW
from tests.support.sessions import MemoryStore, commit
from tests.unit.callback_runner.test_in_order import handler

from callback_runner.handler import CALLBACKS, SILENT_SECONDS, CallbackHandler
from retrofill_core.bus.handler import SET_ASIDE_SECONDS
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.topics import CALLBACK_RUNNER, Topic
from retrofill_core.store import callbacks, listed
from retrofill_core.store.callbacks import NewCallback
from retrofill_core.store.tables import backfill, callback, run

BAD, GOOD = 7, 8
CALL = NewCallback(7, 0, "page", "function", {}, {}, {}, "p", NOW, "b1", "run_failed", 0, collects=True)
ENDED: dict[str, Any] = {"collects": False, "event": {"type": "BackfillFailed"}, "occasion": "backfill_ended"}
FAILED = run.update().where(run.c.id == 1)


def mine(id: int) -> Update:
    return callback.update().where(callback.c.deadline_id == id)


class Shard:
    """A bad callback, and a good one that became due later."""

    def __init__(self, *spoils: Update) -> None:
        self.store = MemoryStore()
        self.store.play(BASE)
        self.change(FAILED.values(state="failed", finished_at=NOW))
        good = replace(CALL, **ENDED, deadline_id=GOOD, pipeline="q", place=1)
        self.do(lambda conn: callbacks.insert_all(conn, [replace(CALL, deadline_id=BAD), good]))
        self.do(lambda conn: listed.add_runs(conn, [(1, 0, BAD)]))
        for spoil in spoils:
            self.change(spoil)
        self.handler: CallbackHandler = handler(slots=2, per_pipeline=1)

    def do(self, action: Callable[[Any], Any]) -> Any:
        said = self.store.play([("a", action), ("a", commit)])[0]
        assert not str(said).startswith("error"), said
        return said

    def change(self, statement: Update) -> None:
        self.do(lambda conn: conn.execute(statement).rowcount)

    def check(self, max_bytes: int = 1_000_000) -> Transaction:
        """One check of the shard, committed."""
        made: list[Transaction] = []

        def work(conn: Any) -> None:
            made.append(Transaction(conn, CALLBACK_RUNNER, 0, 0, max_bytes))
            self.handler.check(made[0], [CALLBACKS])

        self.do(work)
        return made[0]

    def states(self) -> dict[int, str]:
        return {row["deadline_id"]: row["state"] for row in self.rows()}

    def tries(self) -> dict[int, int]:
        return {row["deadline_id"]: row["attempts"] for row in self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.do(
            lambda conn: [dict(row) for row in conn.execute(select(callback)).mappings().all()]
        )
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """This process's clock, which the test moves."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


SPOILED = {
    "an error of another shape": [FAILED.values(error={"type": "ValueError"})],
    "an unknown time zone": [backfill.update().values(definition={"timezone": "Mars/Olympus"})],
    "options of another shape": [mine(BAD).values(**ENDED, options=["at_most_once"])],
    "kwargs of another shape": [mine(BAD).values(kwargs=["x"])],
}


@pytest.mark.parametrize("spoils", SPOILED.values(), ids=SPOILED)
def test_one_that_cannot_be_claimed_stays_pending(spoils: list[Update]) -> None:
    shard = Shard(*spoils)
    tx = shard.check()
    assert shard.states() == {BAD: "pending", GOOD: "running"}
    assert [row for row in tx.outgoing if row.topic == Topic.CALLBACK_EVENTS] == []
    # It is due, yet not asked for in a loop.
    assert tx.checks[CALLBACKS] > 1


def test_nor_can_one_whose_event_is_too_large() -> None:
    shard = Shard()
    shard.check(max_bytes=100)
    assert shard.states() == {BAD: "pending", GOOD: "running"}


def test_it_is_tried_again(clock: list[float]) -> None:
    shard = Shard(*SPOILED["an error of another shape"])
    shard.check()
    shard.change(FAILED.values(error=None))
    shard.check()
    assert shard.states()[BAD] == "pending"
    clock[0] += SET_ASIDE_SECONDS
    (event,) = [row for row in shard.check().outgoing if row.topic == Topic.CALLBACK_EVENTS]
    assert b'"RunsFailed"' in (event.value or b"")
    assert shard.states()[BAD] == "running"


def test_a_lost_call_that_cannot_be_recorded_holds_no_other(clock: list[float]) -> None:
    shard = Shard(mine(BAD).values(**ENDED))
    calls = [{"deadline_id": id, "token": f"t{id}", "attempts": 1} for id in (BAD, GOOD)]
    shard.do(lambda conn: callbacks.claim(conn, calls, -1.0))
    shard.change(mine(BAD).values(options=["at_most_once"]))
    shard.check()
    clock[0] += SILENT_SECONDS
    tx = shard.check()
    assert shard.tries() == {BAD: 1, GOOD: 2}
    assert tx.checks[CALLBACKS] > 1
    shard.change(mine(BAD).values(options={}))
    clock[0] += SET_ASIDE_SECONDS
    shard.check()
    clock[0] += SILENT_SECONDS
    shard.check()
    assert shard.tries() == {BAD: 2, GOOD: 2}
