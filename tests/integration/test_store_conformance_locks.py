"""The simulated store behaves like the real Postgres: locks, waiting, deadlocks, and random scripts
of several sessions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert as pg_insert
from tests.support.both_stores import (
    BASE,
    DAY,
    NOW,
    START,
    Both,
    both,
    end,
    installation,
    lock_run,
    make_backfill,
    put,
    start,
)
from tests.support.definitions import daily
from tests.support.sessions import Step, commit, rollback

from retrofill_core.store import attempts, backfills, claims, pipelines, planning, runs
from retrofill_core.store import tables as t

__all__ = ["both", "installation"]


def test_a_locked_row_is_skipped(both: Both) -> None:
    both.play(
        *BASE,
        ("a", lambda conn: backfills.lock(conn, "b1", wait=False)),
        ("b", lambda conn: backfills.lock(conn, "b1", wait=False)),
        ("b", lambda conn: backfills.still_active(conn, ["b1", "b2"])),
        ("a", rollback),
        ("b", lambda conn: backfills.lock(conn, "b1", wait=False)),
    )


def test_who_waited_looks_again(both: Both) -> None:
    """A waiting update rechecks its condition after the lock: if the row has left the expected
    state, the update does not land.
    """
    said = both.play(
        *BASE,
        ("a", lambda conn: start(conn, 1, 1)),
        ("b", lambda conn: start(conn, 1, 2)),
        ("a", commit),
        ("b", lambda conn: conn.execute(select(t.run.c.attempt_id).where(t.run.c.id == 1)).scalar()),
        ("b", commit),
    )
    assert said[len(BASE) + 1] == ["waited", 0]
    both.same_tables(t.run, t.attempt)


def test_who_waited_goes_on_after_a_rollback(both: Both) -> None:
    said = both.play(
        *BASE,
        ("a", lambda conn: start(conn, 1, 1)),
        ("b", lambda conn: start(conn, 1, 2)),
        ("a", rollback),
        ("b", commit),
    )
    assert said[len(BASE) + 1] == ["waited", 1]
    both.same_tables(t.run, t.attempt)


@pytest.mark.parametrize("ends", [commit, rollback])
def test_a_unique_key_of_somebody_who_has_not_ended(both: Both, ends: Any) -> None:
    outcome = backfills.Outcome("x", {}, "h")
    said = both.play(
        ("a", lambda conn: backfills.record_outcome(conn, "b1", outcome)),
        ("b", lambda conn: backfills.record_outcome(conn, "b1", outcome)),
        ("a", ends),
        ("b", commit),
    )
    assert said[1] == ["waited", "error 23505" if ends is commit else None]
    both.same_tables(t.backfill_request)


@pytest.mark.parametrize("ends", [commit, rollback])
def test_an_overlap_with_somebody_who_has_not_ended(both: Both, ends: Any) -> None:
    said = both.play(
        put(),
        ("a", commit),
        ("a", lambda conn: make_backfill(conn, "b1")),
        ("b", lambda conn: make_backfill(conn, "b2", first=START + DAY)),
        ("a", ends),
        ("b", commit),
    )
    assert said[3] == ["waited", "error 23P01" if ends is commit else 3]
    both.same_tables(t.backfill)


@pytest.mark.parametrize("ends", [commit, rollback])
def test_a_slot_that_somebody_takes_or_leaves(both: Both, ends: Any) -> None:
    both.play(
        *BASE,
        ("a", lambda conn: start(conn, 1, 1)),
        ("a", commit),
        ("a", lambda conn: end(conn, 1)),
        ("b", lambda conn: start(conn, 2, 1)),
        ("a", ends),
        ("b", commit),
    )
    both.same_tables(t.run, t.attempt)


@pytest.mark.parametrize("ends", [commit, rollback])
def test_do_nothing_and_do_update_wait_as_well(both: Both, ends: Any) -> None:
    def upsert(name: str) -> Step:
        values = {"topic": "t", "partition": 0, "topic_id": name, "next_offset": 1}
        statement = (
            pg_insert(t.SERVICE_TABLES["run_starter"].offset)
            .values(values)
            .on_conflict_do_update(index_elements=["topic", "partition"], set_={"topic_id": name})
        )
        return (name, lambda conn: conn.execute(statement) and None)

    both.play(
        ("a", lambda conn: pipelines.expect_copy(conn, "c", b"x")),
        upsert("a"),
        ("b", lambda conn: pipelines.expect_copy(conn, "c", b"x")),
        ("a", ends),
        upsert("b"),
        ("b", commit),
    )
    both.same_tables(t.pipeline_copy, t.SERVICE_TABLES["run_starter"].offset)


def test_shared_locks(both: Both) -> None:
    both.play(
        *BASE,
        ("a", lock_run(1, read=True)),
        ("b", lock_run(1, read=True)),
        ("c", lock_run(1, key_share=True, skip_locked=True)),
        ("c", lock_run(1, key_share=True)),
        ("a", commit),
        ("b", commit),
        ("c", lock_run(1)),
    )


def test_a_plan_of_the_same_pipeline_waits(both: Both) -> None:
    both.play(
        ("a", lambda conn: planning.lock_pipelines(conn, [2, 1])),
        ("b", lambda conn: planning.lock_pipelines(conn, [3, 2])),
        ("a", commit),
        ("b", commit),
    )


def test_a_statement_sees_what_was_committed_when_it_began(both: Both) -> None:
    count: Callable[[Any], Any] = lambda conn: conn.execute(select(func.count()).select_from(t.run)).scalar()  # noqa: E731
    both.play(
        *BASE,
        ("b", count),
        ("a", lambda conn: make_backfill(conn, "b2", first=START + 9 * DAY)),
        ("b", count),
        ("a", commit),
        ("b", count),
    )


def test_of_a_deadlock_one_is_the_victim(both: Both) -> None:
    """The server may choose either session as victim: one gets an error, the other continues."""
    steps: Sequence[Step] = [
        *BASE,
        ("a", lock_run(1)),
        ("b", lock_run(2)),
        ("a", lock_run(2)),
        ("b", lock_run(1)),
        ("a", rollback),
        ("b", rollback),
    ]
    for store in (both.real, both.memory):
        first, second = store.play(steps)[-4:-2]
        outcomes = sorted(str(each[1]) if each[0] == "waited" else str(each) for each in (first, second))
        assert [outcome.startswith("error 40P01") for outcome in sorted(outcomes, reverse=True)] == [True, False]


# anything


@pytest.mark.parametrize("seed", range(12))
def test_random_scripts(both: Both, seed: int) -> None:
    """Two sessions claim, end, lock and skip the same few rows at random. A session that waits for
    a lock continues once it is free.
    """
    chance = random.Random(seed)
    made: list[Step] = []

    def some(name: str) -> Step:
        id, slot = chance.randint(1, 4), chance.randint(1, 3)
        return (
            name,
            chance.choice(
                [
                    lambda conn: start(conn, id, slot),
                    lambda conn: end(conn, id),
                    lambda conn: runs.lock(conn, [id]).keys(),
                    lambda conn: (claims.taken_slots(conn, [1]), claims.claimants(conn, 0, {1: slot}, ["b1"])),
                    lambda conn: claims.lock_pipelines(conn, [1])[0],
                    lambda conn: list(backfills.lock_free(conn, ["b1"])),
                    lambda conn: backfills.lock(conn, "b1", wait=False) is None,
                    lambda conn: backfills.run_counts(conn, "b1"),
                    lambda conn: sorted(attempts.mark_cancel_requested(conn, "b1")),
                    lambda conn: claims.next_queued(conn, {"b1": slot}),
                    lambda conn: pipelines.put(conn, daily(max_active_runs=slot)),
                    lambda conn: attempts.extend_leases(conn, {id: NOW + slot * DAY}),
                    lambda conn: sorted(attempts.lock(conn, [id, slot])),
                    lambda conn: sorted(runs.lock(conn, [id], live_of=[slot])),
                ]
            ),
        )

    # Each transaction of b lies inside one of a. This avoids deadlocks, where the choice of the
    # victim is up to the server.
    for _ in range(6):
        made += [some("a") for _ in range(chance.randint(1, 2))]
        made += [some("b"), ("a", chance.choice([commit, rollback])), ("b", chance.choice([commit, rollback]))]
    both.play(put(), ("a", lambda conn: make_backfill(conn, "b1", days=4)), ("a", commit), *made)
    both.same_tables(t.run, t.attempt, t.backfill, t.pipeline)
