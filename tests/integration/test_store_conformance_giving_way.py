"""The simulated store behaves like the real Postgres: when a batch may begin no more runs because another backfill waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import update
from tests.support.both_stores import (
    DAY,
    START,
    Both,
    accept,
    begin,
    both,
    claim,
    give,
    installation,
    lease_left,
    put,
    renew,
)
from tests.support.both_stores import make_backfill as make
from tests.support.sessions import commit, together

from retrofill_core.store import giving_way
from retrofill_core.store import tables as t
from retrofill_core.store.giving_way import SLICE_OF_SUBMIT, Rank, SeatKind
from retrofill_core.store.sql import database_now

__all__ = ["both", "installation"]
SECOND = timedelta(seconds=1)
Change = Callable[[Any], Any]


def waits(conn: Any, live: int = 0, *, submits: bool = False, pool: str = "default", seconds: float = 60.0) -> None:
    """Another shard's first backfill has waited for an hour."""
    since = database_now(conn) - timedelta(hours=1)
    giving_way.wait_for_seat(conn, 7, SeatKind(pool, submits), Rank(live, since), seconds)


def has_just_begun_to_wait(conn: Any) -> None:
    giving_way.wait_for_seat(conn, 7, SeatKind("default", False), Rank(0, database_now(conn) - SECOND / 2), 60.0)


def set_all(table: Any, conn: Any, **values: Any) -> None:
    conn.execute(update(table).values(**values))


def other(conn: Any, id: str = "b2", days: int = 1, *, ago: timedelta = timedelta(hours=1), **how: Any) -> None:
    """Another backfill of the pipeline, requested an hour ago."""
    make(conn, id, days, START + 100 * DAY, **how)
    row = t.backfill.c.id == id
    conn.execute(update(t.backfill).where(row).values(requested_at=database_now(conn) - ago))


def limited(conn: Any, limit: int = 1) -> None:
    set_all(t.pipeline, conn, max_active_runs=limit)


def served(conn: Any, ago: timedelta) -> None:
    """An attempt of the other backfill ended that long ago."""
    id = claim(conn, 2, backfill="b2")
    over = {"state": "ended", "outcome": "done", "slot": None, "pipeline_slot": None, "lease_until": None}
    conn.execute(update(t.attempt).where(t.attempt.c.id == id).values(ended_at=database_now(conn) - ago, **over))


def begun(conn: Any, ago: timedelta) -> None:
    set_all(t.attempt, conn, began_at=database_now(conn) - ago)


SUBMITS: Change = partial(set_all, t.host, submits=True)
BROKEN: Change = partial(set_all, t.host, note="no Java")
COLD: Change = partial(set_all, t.seat, warm=False)
NO_SLOT: Change = limited
# By case: what is so, and whether the batch, which has one live attempt in a warm seat, gives way.
CASES: dict[str, tuple[list[Change], bool]] = {
    "nobody waits": ([], False),
    "one without an attempt": ([waits], True),
    "its publisher": ([partial(waits, live=-1)], True),
    "one with as many": ([partial(waits, live=1)], False),
    "one with one less of two": ([partial(waits, live=1), lambda conn: claim(conn, 2, 3)], False),
    "one with two less": ([partial(waits, live=1), lambda conn: [claim(conn, n, 3) for n in (2, 3)]], True),
    "in another pool": ([partial(waits, pool="other")], False),
    "waited once": ([partial(waits, seconds=-1.0)], False),
    "has just begun to wait": ([has_just_begun_to_wait], False),
    "for spark-submit, which the host does not start": ([partial(waits, submits=True)], False),
    "for spark-submit": ([partial(waits, submits=True), SUBMITS], True),
    "for a warm driver in a cold seat": ([waits, COLD], True),
    "for a warm driver in a cold seat, where none starts": ([waits, COLD, BROKEN], False),
    "its own time is not over": ([waits, partial(begun, ago=2 * SECOND)], False),
    "it has not begun": ([waits, partial(set_all, t.attempt, began_at=None)], False),
    "its own time is over": ([waits, partial(begun, ago=6 * SECOND)], True),
    "another backfill has the slot it needs": ([other], False),
    "for the only slot": ([other, NO_SLOT], True),
    "for one of two slots": ([other, partial(limited, limit=2)], False),
    "paused": ([other, NO_SLOT, lambda conn: conn.execute(
        update(t.backfill).where(t.backfill.c.id == "b2").values(state="paused")) and None], False),
    "its runs have begun": ([other, NO_SLOT, lambda conn: conn.execute(
        update(t.run).where(t.run.c.backfill_id == "b2").values(state="succeeded", finished_at=START)) and None], False),
    "only suspects": ([other, NO_SLOT, lambda conn: conn.execute(
        update(t.run).where(t.run.c.backfill_id == "b2").values(lost_at=START)) and None], False),
    "held by a failed run": ([partial(other, days=2, on_run_failure="pause"), NO_SLOT, lambda conn: conn.execute(
        update(t.run).where(t.run.c.id == 4).values(state="failed", finished_at=START)) and None], False),
    "requested just now": ([partial(other, ago=SECOND / 2), NO_SLOT], False),
    "served just now": ([other, NO_SLOT, partial(served, ago=SECOND / 2)], False),
    "served a while ago": ([other, NO_SLOT, partial(served, ago=3 * SECOND)], True),
    "with another executor": ([partial(other, executor="spark-submit"), NO_SLOT], False),
    "in another pool, for the slot": ([partial(other, pool="other"), NO_SLOT], False),
}  # fmt: skip


def batch(conn: Any, executor: str = "pool") -> None:
    """The first run of a batch began long ago."""
    make(conn, "b1", executor=executor)
    claim(conn, 1, count=3)
    give(conn, 1, 1, 2, 3)
    begin(conn, 1, 1)
    renew(conn, 1, 120)
    set_all(t.seat, conn, warm=True)


@pytest.mark.parametrize(("changes", "gives_way"), CASES.values(), ids=CASES)
def test_a_batch_gives_way(both: Both, changes: list[Change], gives_way: bool) -> None:
    said = both.play(
        put(), ("a", batch), ("a", together(*changes)), ("a", lambda conn: lease_left(conn, 1, 2)), ("a", commit)
    )
    assert said[3] == (None if gives_way else 12)


@pytest.mark.parametrize(("ago", "gives_way"), [(SLICE_OF_SUBMIT - 5 * SECOND, False), (SLICE_OF_SUBMIT, True)])
def test_a_batch_of_spark_submit_keeps_its_seat_longer(both: Both, ago: timedelta, gives_way: bool) -> None:
    said = both.play(
        put(),
        ("a", lambda conn: batch(conn, "spark-submit")),
        ("a", together(waits, partial(begun, ago=ago))),
        ("a", lambda conn: lease_left(conn, 1, 2)),
        ("a", commit),
    )
    assert said[3] == (None if gives_way else 12)


def test_output_that_was_accepted_is_published_whoever_waits(both: Both) -> None:
    said = both.play(
        put(),
        ("a", batch),
        ("a", lambda conn: accept(conn, 1, 1)),
        ("a", together(waits)),
        ("a", lambda conn: (lease_left(conn, 1, 1), lease_left(conn, 1, 2))),
        ("a", commit),
    )
    assert said[4] == [12, None]
