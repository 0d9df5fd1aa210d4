"""The simulated store behaves like the real Postgres: time limits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.support.both_stores import BASE, NOW, START, Both, begin, both, claim, give, installation
from tests.support.sessions import commit

from retrofill.states.task_run import TaskState
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, launches, runs, task_runs
from retrofill_core.store import tables as t

__all__ = ["both", "installation"]
LATE = {"type": "RunTimedOut", "message": "too late"}
OF = TaskState
LIMIT = START + timedelta(minutes=1)


def limits(conn: Any) -> list[Any]:
    return [(lease.attempt_id, lease.times_out_at) for lease in attempts.leases(conn, 0)]


def again(conn: Any, **values: Any) -> Any:
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
        ("a", again),
        ("a", limits),
        ("a", lambda conn: runs.mark_timed_out(conn, {1: LATE, 3: LATE})),
        ("a", lambda conn: attempts.mark_release_requested(conn, [1])),
        ("a", limits),
        ("a", lambda conn: runs.move(conn, RunState.QUEUED, [split], {}, [RunState.RUNNING])),
        ("a", lambda conn: give(conn, 1, 1)),
        ("a", again),
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
        task_runs.create(conn, [(1, number, name)])
        for state, try_number, error in ((OF.QUEUED, 1, None), (OF.RUNNING, 1, None), *steps):
            row = {"run_id": 1, "attempt": number, "task": name, "try_number": try_number, "error": error}
            assert task_runs.move(conn, state, [row], {}) == 1
        task_runs.cancel_open(conn, [(1, number)], NOW)

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
