"""The simulated store behaves like the real Postgres: retries, changes, and intervals with gaps."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update
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
from tests.support.sessions import commit, rollback, together

from retrofill_core.domain.planning import Intervals, Plan
from retrofill_core.domain.run import RunState
from retrofill_core.store import backfills, claims, failures, planning, retries, run_cancels, undo
from retrofill_core.store import tables as t

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
            retries.not_done(conn, "b1"),
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


MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
# Runs of other intervals, which were planned later.
ELSEWHERE = {
    "each hour of the first day": [(START + n * HOUR, START + (n + 1) * HOUR) for n in range(24)],
    "all but a minute of each hour": [(START + n * HOUR, START + n * HOUR + 59 * MINUTE) for n in range(24)],
    "the first hour only": [(START, START + HOUR)],
    "two weeks around": [(START - 7 * DAY, START + 7 * DAY)],
    "the days of another zone": [(START + (n - 1) * DAY + 5 * HOUR, START + n * DAY + 5 * HOUR) for n in range(3)],
    "the day before, which ends there": [(START - DAY, START)],
}


@pytest.mark.parametrize("spans", ELSEWHERE.values(), ids=ELSEWHERE.keys())
@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_runs_of_other_schedules_that_overlap(both: Both, spans: list[tuple[datetime, datetime]], state: str) -> None:
    later = Plan(Intervals([start for start, _ in spans], [end for _, end in spans]), [None] * len(spans))
    of_days = planned([(START, START + 9 * DAY)]).intervals
    of_others = planned([(START, START), (START + 3 * DAY, START + 3 * DAY)]).intervals

    def ended(conn: Any, id: str) -> None:
        conn.execute(update(t.run).where(t.run.c.backfill_id == id).values(state=state, finished_at=NOW))

    def over(conn: Any) -> None:
        conn.execute(update(t.backfill).where(t.backfill.c.id == "b1").values(state="failed", ended_at=NOW))

    said = both.play(
        *BASE,
        ("a", lambda conn: (start(conn, 1, 1), begin(conn, 1, 1), end(conn, 1, state=RunState.FAILED))),
        ("a", over),
        # The other pipeline's runs are none of it.
        put("q"),
        ("a", lambda conn: make_backfill(conn, "b2", made=later)),
        ("a", lambda conn: make_backfill(conn, "b3", 1, pipeline=2)),
        ("a", together(lambda conn: ended(conn, "b2"), lambda conn: ended(conn, "b3"))),
        ("a", lambda conn: planning.history(conn, 1, of_days)),
        ("a", lambda conn: planning.history(conn, 2, of_others)),
        ("a", lambda conn: retries.not_done(conn, "b1")),
        ("a", lambda conn: undo.intervals(conn, "b2", None, None)),
        ("a", lambda conn: conn.commit()),
    )
    ours, others, left, *_ = said[-5:]
    near = [(first, last) for first, last in spans if last > START]
    assert [each[1:3] for each in ours["finished"] if each[0] > 3] == [[first, last] for first, last in near]
    assert [each[1:3] for each in others["finished"]] == [[START, START + DAY]]
    # Only the failed day is left, unless all of it was done since.
    done = state == "succeeded" and len(spans) != 1 and spans[0][1] - spans[0][0] != 59 * MINUTE
    whole = done or (state == "succeeded" and spans[0][1] - spans[0][0] == 14 * DAY)
    assert left["starts"] == ([] if whole else [START])
