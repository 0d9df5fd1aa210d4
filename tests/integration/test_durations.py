"""Durations of attempts and their runs, on the real Postgres and on the simulated one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.support.both_stores import NOW, Both, both, claim, give, installation, make_backfill, put

from retrofill.states import AttemptState
from retrofill_core.deadlines import last_runtimes
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, claims, progress, runs
from retrofill_core.store.transition import IfNull, Plus

__all__ = ["both", "installation"]


def after(seconds: float) -> Any:
    return NOW + timedelta(seconds=seconds)


def begin(conn: Any, mode: str, ids: range, at: float, slot: int = 1) -> int:
    """An attempt that begins all its runs at once."""
    attempt = claim(conn, slot, ids[0], len(ids), mode)
    give(conn, attempt, *ids)
    attempts.move(conn, AttemptState.RUNNING, [{"id": attempt}], {"began_at": after(at)})
    given = [{"id": id, "attempt_id": attempt} for id in ids]
    runs.move(conn, RunState.RUNNING, given, {"attempt": Plus(1), "started_at": IfNull(after(at))})
    return attempt


def finish(conn: Any, attempt: int, ids: range, at: float, to: str = RunState.SUCCEEDED, **more: Any) -> None:
    ended = {} if to in (RunState.QUEUED, RunState.STAGED) else {"finished_at": after(at)}
    runs.move(conn, to, [{"id": id, "attempt_id": attempt, **more} for id in ids], ended)


def over(conn: Any, attempt: int, at: float, outcome: str = "done") -> None:
    values = {"ended_at": after(at), **attempts.NOT_LIVE}
    attempts.move(conn, AttemptState.ENDED, [{"id": attempt, "outcome": outcome, "error": None}], values)


def pasts(conn: Any) -> list[Any]:
    found = progress.last_attempts(conn, [1])[1]
    return [(str(past.mode), past.runs, past.seconds, str(past.outcome), past.complete) for past in found]


def seconds(conn: Any, last_n: int) -> list[float]:
    return [took.total_seconds() for took in last_runtimes(conn, 1, last_n)]


def test_the_runs_of_a_range_share_its_span(both: Both) -> None:
    def play(conn: Any) -> None:
        whole = begin(conn, "range", range(1, 5), 0)
        finish(conn, whole, range(1, 5), 40)
        over(conn, whole, 41)
        # One by one: the second begins when the first has ended, and each has its own start.
        each = begin(conn, "each", range(5, 6), 100)
        give(conn, each, 6)
        finish(conn, each, range(5, 6), 107)
        given = [{"id": 6, "attempt_id": each}]
        runs.move(conn, RunState.RUNNING, given, {"attempt": Plus(1), "started_at": after(107)})
        finish(conn, each, range(6, 7), 116)
        over(conn, each, 117)

    said = both.play(
        put(), ("a", lambda conn: make_backfill(conn, "b1", 9)), ("a", play), ("a", lambda c: seconds(c, 9))
    )
    assert said[-1] == [9, 7, 10, 10, 10, 10]


def test_a_run_that_was_split_off_is_measured_from_its_last_attempt(both: Both) -> None:
    def play(conn: Any) -> None:
        failed = begin(conn, "range", range(1, 5), 0)
        finish(conn, failed, range(1, 5), 500, RunState.QUEUED, range_limit=2)
        over(conn, failed, 500, "failed")
        pair = begin(conn, "range", range(1, 3), 600)
        finish(conn, pair, range(1, 3), 606)
        over(conn, pair, 606)
        alone = begin(conn, "each", range(3, 4), 700)
        finish(conn, alone, range(3, 4), 704)
        over(conn, alone, 704)

    said = both.play(
        put(), ("a", lambda conn: make_backfill(conn, "b1", 9)), ("a", play), ("a", lambda c: seconds(c, 9))
    )
    assert said[-1] == [4, 3, 3]


def test_a_run_that_another_attempt_published_counts_as_part_of_its_range(both: Both) -> None:
    def play(conn: Any) -> None:
        whole, output = begin(conn, "range", range(1, 3), 0), {"outputs": {"folders": ["/o"]}}
        accepted = [{"id": id, "attempt_id": whole, "accepted_attempt": whole, **output} for id in (1, 2)]
        runs.move(conn, RunState.PUBLISHING, accepted, {}, [RunState.RUNNING])
        finish(conn, whole, range(1, 2), 20)
        finish(conn, whole, range(2, 3), 20, RunState.STAGED)
        over(conn, whole, 25, "lost")
        publisher = claim(conn, 1, 2, 1, "publish")
        give(conn, publisher, 2, to=RunState.PUBLISHING, before=RunState.STAGED)
        finish(conn, publisher, range(2, 3), 30)
        over(conn, publisher, 30)

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", 9)),
        ("a", play),
        ("a", lambda conn: seconds(conn, 9)),
        ("a", pasts),
    )
    assert said[-2] == [15, 10]
    assert said[-1] == [["range", 2, 25, "lost", False]]


def test_the_last_attempts_say_how_long_they_took_and_whether_all_succeeded(both: Both) -> None:
    def play(conn: Any) -> None:
        good = begin(conn, "range", range(1, 4), 0)
        finish(conn, good, range(1, 4), 30)
        over(conn, good, 31)
        # A failed run ended it; the other one goes back.
        cut = begin(conn, "each", range(4, 6), 40)
        finish(conn, cut, range(4, 5), 42, RunState.FAILED)
        finish(conn, cut, range(5, 6), 42, RunState.QUEUED)
        over(conn, cut, 43)
        # Its only run failed at once.
        alone = begin(conn, "each", range(5, 6), 50)
        finish(conn, alone, range(5, 6), 51, RunState.FAILED)
        over(conn, alone, 52)
        # Nothing was executed, and one is still at it.
        over(conn, claim(conn, 1, 6), 60, "released")
        begin(conn, "each", range(6, 7), 70)

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", 9)),
        ("a", play),
        ("a", pasts),
        ("a", lambda conn: progress.last_attempts(conn, [2])),
    )
    assert said[-2] == [
        ["each", 1, 2, "done", False],
        ["each", 2, 3, "done", False],
        ["range", 3, 31, "done", True],
    ]
    assert said[-1] == {"2": []}


def test_only_so_many_attempts_are_read(both: Both) -> None:
    def play(conn: Any) -> None:
        for n in range(progress.PAST_ATTEMPTS + 5):
            attempt = begin(conn, "each", range(n + 1, n + 2), 10 * n)
            finish(conn, attempt, range(n + 1, n + 2), 10 * n + n)
            over(conn, attempt, 10 * n + n)

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", 50)),
        ("a", play),
        ("a", lambda conn: [past.seconds for past in progress.last_attempts(conn, [1])[1]]),
        ("a", lambda conn: claims.next_queued(conn, {"b1": 3})["b1"].last),
    )
    assert said[-2] == list(range(progress.PAST_ATTEMPTS + 4, 4, -1))
    assert said[-1] == 49
