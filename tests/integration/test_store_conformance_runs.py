"""The simulated store behaves like the real Postgres: what befalls single runs."""

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
    accept,
    begin,
    both,
    claim,
    end,
    finish,
    give,
    installation,
    lease_left,
    make_backfill,
    over,
    planned,
    put,
    register,
    start,
)
from tests.support.sessions import Step, commit, rollback, together

from retrofill.states import TaskState
from retrofill_core.domain.planning import Intervals, Plan
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, backfills, claims, conditions, launches, planning, run_commands, runs, undo
from retrofill_core.store import tables as t
from retrofill_core.store.sql import database_now

__all__ = ["both", "installation"]


# cancels of single runs


def ids(rows: Any) -> list[int]:
    return [row.id for row in rows]


def test_the_runs_that_a_command_names(both: Both) -> None:
    def found(conn: Any) -> Any:
        day = (START, START + DAY)
        return [
            run_commands.starting_within(conn, "b1", [(START + 9 * DAY, START + 9 * DAY), day], 9),
            run_commands.starting_within(conn, "b1", [day], 1),
            run_commands.with_ids(conn, "b1", [9, 3, 4], after=2),
        ]

    said = both.play(
        *BASE,
        ("a", lambda conn: make_backfill(conn, "b2", 1, START + 9 * DAY)),
        ("a", lambda conn: run_commands.request_cancels(conn, "b1", [2], "ce")),
        ("a", found),
        ("a", commit),
    )
    by_start, first, by_id = said[-2]
    assert [(each["number"], each["run_id"], each["asked"]) for each in by_start] == [(2, 1, False), (2, 2, True)]
    assert [each["run_id"] for each in first] == [1]
    # The fourth run is another backfill's.
    assert [(each["number"], each["run_id"]) for each in by_id] == [(4, 3)]
    both.play(("look", lambda conn: [row.ce_id for row in conn.execute(t.run_cancel.select())]))


def test_attempts_end_for_the_sake_of_runs_that_were_not_accepted(both: Both) -> None:
    """Runs 1 and 2 of one attempt, 3 of another; 4 and 5 are queued."""
    said = both.play(
        BASE[0],
        ("a", lambda conn: make_backfill(conn, "b1", 5)),
        ("a", lambda conn: (give(conn, claim(conn, 1, count=2), 1, 2), give(conn, claim(conn, 2, 3), 3))),
        ("a", lambda conn: (begin(conn, 1, 1), begin(conn, 2, 3), accept(conn, 2, 3))),
        ("a", lambda conn: run_commands.mark_release_requested(conn, ["b1"])),
        ("a", lambda conn: backfills.lock_free(conn, ["b1"])[1]),
        ("a", lambda conn: run_commands.request_cancels(conn, "b1", [2, 3, 4, 5], None)),
        ("a", commit),
        ("b", lambda conn: backfills.lock_free(conn, ["b1"])[1]),
        ("b", lambda conn: (lease_left(conn, 1, 2) is None, attempts.to_be_ended(conn, [1, 2]))),
        ("b", lambda conn: run_commands.mark_release_requested(conn, ["b1", "b2"])),
        ("b", lambda conn: run_commands.mark_release_requested(conn, ["b1"])),
        ("b", lambda conn: (lease_left(conn, 1, 2) is None, attempts.to_be_ended(conn, [1, 2]))),
        ("b", lambda conn: sorted(run_commands.cancelled_among(conn, ["b1"], [1, 2, 3, 9]))),
        (
            "b",
            lambda conn: (
                ids(run_commands.queued_to_cancel(conn, ["b1"], 9)),
                ids(run_commands.queued_to_cancel(conn, ["b1"], 1)),
            ),
        ),
        (
            "b",
            lambda conn: (run_commands.backfills_with_cancels(conn, 0), run_commands.backfills_with_cancels(conn, 1)),
        ),
        ("b", commit),
    )
    assert said[4:6] == [[], []]
    assert said[8:] == [["b1"], [False, []], [1], [], [True, [1]], [2, 3], [[4, 5], [4]], [["b1"], []], None]
    both.same_tables(t.attempt)


def test_a_backfill_knows_whether_a_run_was_cancelled_by_itself(both: Both) -> None:
    """One that was asked to be, but ended before, was not."""
    said = both.play(
        *BASE,
        ("a", lambda conn: give(conn, claim(conn, 1), 1)),
        ("a", lambda conn: run_commands.request_cancels(conn, "b1", [1, 2], None)),
        ("a", lambda conn: (begin(conn, 1, 1), finish(conn, 1))),
        ("a", lambda conn: backfills.progress(conn, "b1").any_run_cancelled),
        ("a", lambda conn: runs.move(conn, RunState.CANCELLED, [{"id": 2}], {"finished_at": START}, guard=())),
        ("a", lambda conn: backfills.progress(conn, "b1").any_run_cancelled),
        ("a", commit),
    )
    assert (said[-4], said[-2]) == (False, True)


# retries, changes, and intervals with gaps


def replaced(conn: Any) -> Any:
    """All failed runs of the first backfill are replaced."""
    return run_commands.replace_failed(conn, run_commands.failed_runs(conn, "b1", None, after=-1, most=9), NOW)


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
            conditions.count_failed(conn, "b1"),
            backfills.progress(conn, "b1"),
            backfills.run_counts(conn, "b1"),
            run_commands.starting_within(conn, "b1", [day], 9),
            claims.next_queued(conn, {"b1": 9}),
            planning.history(conn, 1, planned([(START, START + 9 * DAY)]).intervals),
            run_commands.not_done(conn, "b1"),
        ]

    said = both.play(
        *FAILED,
        ("a", facts),
        ("a", lambda conn: run_commands.failed_runs(conn, "b1", [2, 9], after=-1, most=9)),
        ("a", lambda conn: run_commands.failed_runs(conn, "b1", None, after=0, most=9)),
        ("a", lambda conn: run_commands.failed_runs(conn, "b1", None, after=-1, most=1)),
        ("a", replaced),
        ("a", replaced),
        ("a", facts),
        ("a", lambda conn: run_commands.armed_deadlines(conn, [1, 2], 9)),
        ("a", lambda conn: backfills.change(conn, "b1", {"failed_before": 1, "batch_size": 2})),
        ("a", commit),
    )
    before, among, after, first, made, again, now, *_ = said[len(FAILED) :]
    assert (before[0], now[0], again) == (2, 0, [])
    assert [[each["id"] for each in found] for found in (among, after, first)] == [[2], [2], [1]]
    assert [each["replaces"] for each in made] == [1, 2]
    both.same_tables(t.backfill, t.run)


def test_two_retries_of_a_run_cannot_both_commit(both: Both) -> None:
    failed = run_commands.RetriableRun(1, 0, START)
    both.play(
        *FAILED,
        ("a", lambda conn: run_commands.replace_failed(conn, [failed], NOW)),
        # The second one finds nothing to supersede, so its new run would be another of the position.
        ("a", lambda conn: run_commands.replace_failed(conn, [failed], NOW)),
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
        ("a", lambda conn: run_commands.not_done(conn, "b1")),
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


# time limits


LATE = {"type": "RunTimedOut", "message": "too late"}
OF = TaskState
LIMIT = START + timedelta(minutes=1)


def limits(conn: Any) -> list[Any]:
    return [(lease.attempt_id, lease.times_out_at) for lease in attempts.leases(conn, 0)]


def begin_again(conn: Any, **values: Any) -> Any:
    """Run 1 begins once more, with a time limit."""
    given = [{"id": 1, "attempt_id": 1, "times_out_at": LIMIT}]
    return runs.move(conn, RunState.RUNNING, given, values, [RunState.STARTING])


def test_a_marked_run_has_no_limit_until_it_begins_again(both: Both) -> None:
    split = {"id": 1, "attempt_id": 1, "range_limit": 1, "error": None}
    said = both.play(
        *BASE,
        ("a", lambda conn: claim(conn, 1, 1, 2)),
        ("a", lambda conn: give(conn, 1, 1, 2)),
        ("a", lambda conn: begin(conn, 1, 2)),
        ("a", limits),
        ("a", begin_again),
        ("a", limits),
        ("a", lambda conn: runs.mark_failing(conn, {1: LATE, 3: LATE})),
        ("a", lambda conn: attempts.mark_release_requested(conn, [1])),
        ("a", limits),
        ("a", lambda conn: runs.move(conn, RunState.QUEUED, [split], {}, [RunState.RUNNING])),
        ("a", lambda conn: give(conn, 1, 1)),
        ("a", begin_again),
        ("a", limits),
        ("a", commit),
    )
    found = [each for each in said if isinstance(each, list) and each and isinstance(each[0], list)]
    assert found == [[[1, None]], [[1, LIMIT]], [[1, None]], [[1, LIMIT]]]
    both.same_tables(t.run, t.attempt)


def test_the_tries_that_timed_out_and_were_to_be_repeated(both: Both) -> None:
    over = {"type": "TaskTimedOut", "message": "it hangs"}

    def tried(conn: Any, number: int, name: str, *steps: tuple[str, int, Any]) -> None:
        """What becomes of a task in the ``number``-th execution of run 1, which is lost then."""
        runs.create_tasks(conn, [(1, number, name)])
        for state, try_number, error in ((OF.QUEUED, 1, None), (OF.RUNNING, 1, None), *steps):
            row = {"run_id": 1, "attempt": number, "task": name, "try_number": try_number, "error": error}
            assert runs.move_tasks(conn, state, [row], {}) == 1
        runs.cancel_open_tasks(conn, [(1, number)], NOW)

    said = both.play(
        *BASE,
        ("a", lambda conn: tried(conn, 1, "a", (OF.RETRYING, 1, over))),
        ("a", lambda conn: tried(conn, 2, "a", (OF.RETRYING, 2, over))),
        # Neither tries that were followed by another one, nor other errors.
        ("a", lambda conn: tried(conn, 3, "b", (OF.RETRYING, 1, over), (OF.RUNNING, 2, None))),
        ("a", lambda conn: tried(conn, 4, "b", (OF.RETRYING, 1, {"type": "ValueError", "message": "no"}))),
        ("a", lambda conn: [launches.tries_used(conn, [1, 2]), launches.tries_used(conn, [2])]),
        ("a", commit),
    )
    assert said[-2] == [{"1": {"a": 2}}, {}]


# suspects, and the server on which they start


def claim_alone(conn: Any, run: int, pool: str | None = None) -> int:
    """Start an attempt at one run of the first backfill; returns its id."""
    host = register(conn)
    new = attempts.NewAttempt("b1", 1, "each", run - 1, 1, run, run, {}, "h", host, 1, pool)
    (id,) = attempts.insert_all(conn, [new], [host], NOW, 30.0)
    give(conn, id, run)
    return id


def lose(conn: Any, attempt: int, run: int, minute: int = 0) -> int:
    given = [{"id": run, "attempt_id": attempt, "lost_at": NOW + minute * DAY}]
    begin(conn, attempt, run)
    over(conn, attempt, "lost")
    return runs.move(conn, RunState.QUEUED, given, {}, [RunState.RUNNING])


def next_suspects(conn: Any) -> dict[str, list[int]]:
    found = claims.next_suspects(conn, {"b1": 2, "b2": 2, "b3": 2})
    return {id: [row.id for row in rows] for id, rows in found.items()}


def waiting(conn: Any) -> list[Any]:
    """Who could use a slot, and with a suspect."""
    found = claims.claimants(conn, 0, {1: 9}, ["b1", "b2", "b3"])
    return sorted((each.id, each.suspects) for each in found.values())


# Of the first backfill, all three runs are suspects; the second one belongs to spark-submit, the third
# to another pool.
LOST: list[Step] = [
    put(),
    ("a", lambda conn: make_backfill(conn, "b1")),
    ("a", lambda conn: make_backfill(conn, "b2", first=START + 9 * DAY, executor="spark-submit")),
    ("a", lambda conn: [lose(conn, claim_alone(conn, run), run, minute=9 - run) for run in (1, 2, 3)]),
    ("a", lambda conn: give(conn, claim_alone(conn, 9), 4)),
    ("a", lambda conn: lose(conn, 4, 4)),
    ("a", lambda conn: make_backfill(conn, "b3", first=START + 20 * DAY, pool="other")),
    ("a", lambda conn: give(conn, claim_alone(conn, 19), 7)),
    ("a", lambda conn: lose(conn, 5, 7, minute=20)),
    ("a", commit),
]


def test_suspects_wait_for_the_one_that_is_live_on_their_server(both: Both) -> None:
    said = both.play(
        *LOST,
        ("a", waiting),
        ("a", next_suspects),
        ("a", lambda conn: (claims.pipelines_with_suspects(conn, 0), claims.pipelines_with_suspects(conn, 1))),
        ("a", lambda conn: [row.id for row in claims.next_queued(conn, {"b1": 9, "b2": 9})["b2"].runs]),
        ("a", lambda conn: [row.id for row in runs.queued(conn, "b1", 2)]),
        ("a", lambda conn: claim_alone(conn, 3, "default")),
        ("a", waiting),
        ("a", next_suspects),
        ("a", lambda conn: over(conn, 6, "lost")),
        ("a", next_suspects),
        ("a", commit),
    )
    both.same_tables(t.attempt, t.run)
    found = said[len(LOST) :]
    # The oldest loss first: of spark-submit's.
    assert found[1] == {"b2": [4], "b1": [3, 2], "b3": [7]}
    assert found[5] == 6
    # One that is live holds up those of its own pool.
    assert found[6] != found[0]
    assert [sorted(found[n]) for n in (7, 9)] == [["b2", "b3"], ["b1", "b2", "b3"]]


def turn_ended(conn: Any, attempt: int, seconds: float) -> int:
    """An attempt ended so many seconds ago."""
    at = database_now(conn) - timedelta(seconds=seconds)
    given = [{"id": attempt, "outcome": "done", "error": None}]
    return attempts.move(conn, "ended", given, {"ended_at": at, **attempts.NOT_LIVE})


def fill(conn: Any, id: str) -> None:
    """A backfill has as many live attempts as it may have."""
    conn.execute(update(t.backfill).where(t.backfill.c.id == id).values(max_active_runs=1))
    host = register(conn)
    attempts.insert_all(conn, [attempts.NewAttempt(id, 1, "each", 0, 1, 1, 40, {}, "h", host, 1)], [host], NOW, 30.0)


def pause(conn: Any, id: str) -> None:
    conn.execute(update(t.backfill).where(t.backfill.c.id == id).values(state="paused"))


TURNS: dict[str, tuple[float, Step | None, str, list[str]]] = {
    "just now": (1.0, None, "default", ["b4"]),
    "a while ago": (6.0, None, "default", ["b4", "b1"]),
    "in the future": (-60.0, None, "default", ["b4", "b1"]),
    "of another server": (1.0, None, "other", ["b4", "b1"]),
    "at its limit": (1.0, ("a", lambda conn: fill(conn, "b4")), "default", ["b4", "b1"]),
    "paused": (1.0, ("a", lambda conn: pause(conn, "b4")), "default", ["b4", "b1"]),
}


@pytest.mark.parametrize("case", TURNS)
def test_the_backfill_that_had_its_turn_longest_ago_is_next(both: Both, case: str) -> None:
    """For a few seconds after a suspect ended. Who cannot take its turn holds nobody up."""
    seconds, change, pool, expected = TURNS[case]

    def next_of_both(conn: Any) -> list[str]:
        return list(claims.next_suspects(conn, {"b1": 1, "b4": 1}))

    said = both.play(
        *LOST,
        ("a", lambda conn: make_backfill(conn, "b4", 1, START + 40 * DAY, pool=pool)),
        ("a", lambda conn: give(conn, claim_alone(conn, 29), 10)),
        ("a", lambda conn: lose(conn, 6, 10, minute=30)),
        ("a", next_of_both),
        ("a", lambda conn: claim_alone(conn, 3, "default")),
        ("a", lambda conn: turn_ended(conn, 7, seconds)),
        *([change] if change else []),
        ("a", next_of_both),
        ("a", waiting),
        ("a", commit),
    )
    # Nobody had a turn: the oldest loss first.
    assert said[len(LOST) + 3] == ["b1", "b4"]
    assert said[-3] == expected


def test_two_suspects_are_never_live_on_one_server(both: Both) -> None:
    """Who cannot lock the server passes over its suspects. Otherwise the index decides."""
    said = both.play(
        *LOST,
        ("a", lambda conn: (claims.lock_suspects(conn, "default"), claims.lock_suspects(conn, "default"))),
        ("b", lambda conn: (claims.lock_suspects(conn, "default"), claims.lock_suspects(conn, "other"))),
        ("a", lambda conn: claim_alone(conn, 1, "default")),
        ("a", commit),
        ("b", lambda conn: claims.lock_suspects(conn, "default")),
        ("b", next_suspects),
        ("b", lambda conn: claim_alone(conn, 2, "default")),
    )
    assert said[len(LOST) : len(LOST) + 2] == [[True, True], [False, True]]
    assert said[-3:-1] == [True, {"b2": [4], "b3": [7]}]
    assert said[-1] == "error 23505"
