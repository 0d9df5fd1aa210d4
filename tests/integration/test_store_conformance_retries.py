"""The simulated store behaves like the real Postgres: retries, changes, and intervals with gaps."""

from __future__ import annotations

from typing import Any

from tests.support.both_stores import (
    BASE,
    DAY,
    NOW,
    START,
    Both,
    begin,
    both,
    end,
    finish,
    installation,
    make_backfill,
    planned,
    put,
    start,
)
from tests.support.sessions import commit, rollback

from retrofill.domain.run import RunState
from retrofill.store import backfills, claims, failures, planning, retries, run_cancels
from retrofill.store import tables as t

__all__ = ["both", "installation"]


def replaced(conn: Any) -> Any:
    """All failed runs of the first backfill are replaced."""
    return retries.replace(conn, retries.failed(conn, "b1", None, after=-1, most=9), NOW)


FAILED = (
    *BASE,
    ("a", lambda conn: (start(conn, 1, 1), start(conn, 2, 2), begin(conn, 1, 1), begin(conn, 2, 2))),
    ("a", lambda conn: (end(conn, 1, state=RunState.FAILED), finish(conn, 2, state=RunState.FAILED))),
    ("a", commit),
)


def test_a_failed_run_is_replaced_and_counts_no_more(both: Both) -> None:
    def facts(conn: Any) -> Any:
        day = (START, START + DAY)
        return [
            failures.count_failed(conn, "b1"),
            backfills.progress(conn, "b1"),
            backfills.run_counts(conn, "b1"),
            run_cancels.starting_within(conn, "b1", [day], 9),
            claims.next_queued(conn, {"b1": 9}),
            planning.history(conn, 1, planned([(START, START + 9 * DAY)]).intervals),
            retries.not_done(conn, "b1", 9),
        ]

    said = both.play(
        *FAILED,
        ("a", facts),
        ("a", lambda conn: retries.failed(conn, "b1", [2, 9], after=-1, most=9)),
        ("a", lambda conn: retries.failed(conn, "b1", None, after=0, most=9)),
        ("a", lambda conn: retries.failed(conn, "b1", None, after=-1, most=1)),
        ("a", replaced),
        ("a", replaced),
        ("a", facts),
        ("a", lambda conn: retries.armed_deadlines(conn, [1, 2], 9)),
        ("a", lambda conn: backfills.change(conn, "b1", {"failed_before": 1, "batch_size": 2})),
        ("a", commit),
    )
    before, among, after, first, made, again, now, *_ = said[len(FAILED) :]
    assert (before[0], now[0], again) == (2, 0, [])
    assert [[each["id"] for each in found] for found in (among, after, first)] == [[2], [2], [1]]
    assert [each["replaces"] for each in made] == [1, 2]
    both.same_tables(t.backfill, t.run)


def test_two_retries_of_a_run_cannot_both_commit(both: Both) -> None:
    failed = retries.Failed(1, 0, START)
    both.play(
        *FAILED,
        ("a", lambda conn: retries.replace(conn, [failed], NOW)),
        # The second one finds nothing to supersede, so its new run would be another of the position.
        ("a", lambda conn: retries.replace(conn, [failed], NOW)),
        ("a", rollback),
    )


def test_intervals_with_gaps(both: Both) -> None:
    def gaps(*days: int) -> Any:
        return planned([(START + n * DAY, START + n * DAY) for n in days])

    def history(*days: int) -> Any:
        return lambda conn: planning.history(conn, 1, gaps(*days).intervals)

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", made=gaps(0, 2, 3, 9))),
        ("a", commit),
        ("a", history(1)),
        ("a", history(1, 4, 8)),
        ("a", history(3)),
        ("a", history(1, 9)),
        ("a", lambda conn: make_backfill(conn, "b2", made=gaps(1, 4))),
        ("a", commit),
        ("b", lambda conn: make_backfill(conn, "b3", made=gaps(4, 5))),
        ("b", rollback),
        ("b", lambda conn: make_backfill(conn, "b3", 3, START + 5 * DAY)),
        ("b", commit),
        ("b", lambda conn: make_backfill(conn, "b4", 3, START + 7 * DAY)),
        ("b", rollback),
    )
    assert [len(each["overlapping"]) for each in said[3:7]] == [0, 0, 1, 1]
    both.same_tables(t.backfill, t.backfill_interval, t.run)
