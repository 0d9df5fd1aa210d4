"""The simulated store behaves like the real Postgres: callbacks of runs and backfills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.both_stores import BASE, NOW, Both, both, installation
from tests.support.sessions import commit, rollback

from retrofill_core.store import callbacks, listed
from retrofill_core.store import tables as t
from retrofill_core.store.callbacks import NewCallback

__all__ = ["both", "installation"]


def call(id: int, place: int = 0, occasion: str = "run_failed", **more: Any) -> NewCallback:
    made = NewCallback(id, 0, "page", "function", {}, {"a": [None]}, {}, "p", NOW, "b1", occasion, place)
    return replace(made, **{"collects": occasion == "run_failed", **more})


MADE = (
    *BASE,
    ("a", lambda conn: callbacks.insert_all(conn, [call(7), call(8, 1), call(9, 2, collects=False)])),
    ("a", lambda conn: listed.add_runs(conn, [(2, 0, 7), (1, 0, 7), (1, 1, 8)])),
    ("a", commit),
)


def test_failures_are_collected_until_the_callback_is_closed(both: Both) -> None:
    said = both.play(
        *MADE,
        ("a", lambda conn: listed.next_ids(conn, 2)),
        ("a", lambda conn: listed.collecting(conn, [("b1", 0), ("b1", 1), ("b2", 0)])),
        ("a", lambda conn: listed.failed_runs(conn, 7, 10)),
        ("a", lambda conn: (len(listed.failed_runs(conn, 7, 1)), listed.count_failed_runs(conn, 7))),
        ("a", lambda conn: listed.close(conn, 7, {"count": 2}, {"b": 1})),
        ("a", lambda conn: listed.collecting(conn, [("b1", 0), ("b1", 1)])),
        ("a", lambda conn: callbacks.claim(conn, [{"deadline_id": 7, "token": "t", "attempts": 1}], 1.0)),
        ("a", commit),
    )
    assert said[len(MADE) + 1] == {"('b1', 0)": 7, "('b1', 1)": 8}
    assert said[len(MADE) + 5] == {"('b1', 1)": 8}
    both.same_tables(t.callback, t.callback_run)


def test_a_failure_that_joins_keeps_it_from_being_claimed_and_the_other_way_round(both: Both) -> None:
    said = both.play(
        *MADE,
        ("a", lambda conn: listed.collecting(conn, [("b1", 0), ("b1", 1)])),
        # Other backfills of the same moment may join too.
        ("c", lambda conn: listed.collecting(conn, [("b1", 0), ("b1", 1)])),
        ("b", lambda conn: [row.deadline_id for row in callbacks.lock_pending(conn, [7, 9])]),
        ("b", rollback),
        ("c", rollback),
        ("a", commit),
        ("b", lambda conn: [row.deadline_id for row in callbacks.lock_pending(conn, [7, 9])]),
        ("a", lambda conn: listed.collecting(conn, [("b1", 0), ("b1", 1)])),
    )
    assert said[len(MADE) + 2] == [9]
    assert said[len(MADE) + 6 :] == [[7, 9], {"('b1', 1)": 8}]


@pytest.mark.parametrize(
    "again",
    [
        lambda conn: listed.add_runs(conn, [(1, 0, 8)]),
        lambda conn: callbacks.insert_all(conn, [call(12, 0, "backfill_failed")]),
        lambda conn: callbacks.insert_all(conn, [call(12, 0, "backfill_succeeded")]),
        lambda conn: callbacks.insert_all(conn, [call(13, backfill_id="nobody")]),
        lambda conn: callbacks.insert_all(conn, [call(13, backfill_id=None)]),
        lambda conn: listed.add_runs(conn, [(1, 5, 99)]),
    ],
    ids=["the run", "the end", "another end", "no backfill", "half a backfill", "no callback"],
)
def test_nothing_is_called_twice_and_nothing_without_its_fact(both: Both, again: Any) -> None:
    said = both.play(
        *MADE,
        ("a", lambda conn: callbacks.insert_all(conn, [call(11, 0, "backfill_failed", event={"a": 1})])),
        ("a", commit),
        ("a", again),
        ("a", rollback),
    )
    assert str(said[-2]).startswith("error 23")
    both.same_tables(t.callback, t.callback_run)
