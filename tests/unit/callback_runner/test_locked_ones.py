"""A callback that a failure joins right now is due, but nobody asks for it in a loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.both_stores import BASE, NOW
from tests.support.sessions import MemoryStore, commit, rollback

from callback_runner.handler import CALLBACKS, CallbackHandler
from retrofill_core.bus.handler import RECHECK_SECONDS
from retrofill_core.bus.set_aside import SetAside
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.topics import CALLBACK_RUNNER
from retrofill_core.settings import Settings
from retrofill_core.store import callbacks, listed
from retrofill_core.store.callbacks import NewCallback
from retrofill_core.store.tables import callback, run

CALL = NewCallback(7, 0, "page", "function", {}, {}, {}, "p", NOW, "b1", "run_failed", 0, collects=True)


def handler() -> CallbackHandler:
    """A handler without servers."""
    made = object.__new__(CallbackHandler)
    made._settings = Settings(callback_slots=2)
    made._max_per_pipeline = 1
    made._lock = threading.Lock()
    made._calls, made._turns, made._served, made._silent = {}, {}, {}, {}
    made._closed, made._claims = False, 0
    made._set_aside = SetAside("callback_set_aside", "deadline_id")
    made._engine = made._kinds = None  # type: ignore[assignment]
    return made


def checked(conn: Any) -> tuple[float | None, str]:
    """When the next check is, and the callback's state after this one."""
    tx = Transaction(conn, CALLBACK_RUNNER, 0, 0, 1_000_000)
    handler().check(tx, [CALLBACKS])
    row = conn.execute(callback.select()).mappings().one()
    return tx.checks.get(CALLBACKS), row["state"]


@pytest.mark.parametrize("joins", [True, False])
def test_it_is_looked_at_again_a_moment_later(joins: bool) -> None:
    said = MemoryStore().play(
        [
            *BASE,
            ("a", lambda conn: conn.execute(run.update().values(state="failed", finished_at=NOW)).rowcount),
            ("a", lambda conn: callbacks.insert_all(conn, [CALL])),
            ("a", lambda conn: listed.add_runs(conn, [(1, 0, 7)])),
            ("a", commit),
            ("b", lambda conn: listed.collecting(conn, [("b1", 0)] if joins else [])),
            ("a", checked),
            ("b", rollback),
            ("a", rollback),
        ]
    )
    after, state = said[len(BASE) + 5]
    assert (after, state) == ((RECHECK_SECONDS, "pending") if joins else (after, "running"))
    assert joins or after > 1  # its lease
