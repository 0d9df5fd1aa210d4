"""The simulated store behaves like the real Postgres: suspects, and the server on which they start."""

from __future__ import annotations

from typing import Any

from tests.support.both_stores import (
    DAY,
    NOW,
    START,
    Both,
    begin,
    both,
    give,
    installation,
    make_backfill,
    over,
    put,
    register,
)
from tests.support.sessions import Step, commit

from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, claims, runs
from retrofill_core.store import tables as t

__all__ = ["both", "installation"]


def claim(conn: Any, run: int, pool: str | None = None) -> int:
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
    ("a", lambda conn: [lose(conn, claim(conn, run), run, minute=9 - run) for run in (1, 2, 3)]),
    ("a", lambda conn: give(conn, claim(conn, 9), 4)),
    ("a", lambda conn: lose(conn, 4, 4)),
    ("a", lambda conn: make_backfill(conn, "b3", first=START + 20 * DAY, pool="other")),
    ("a", lambda conn: give(conn, claim(conn, 19), 7)),
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
        ("a", lambda conn: claim(conn, 3, "default")),
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


def test_two_suspects_are_never_live_on_one_server(both: Both) -> None:
    """Who cannot lock the server passes over its suspects. Otherwise the index decides."""
    said = both.play(
        *LOST,
        ("a", lambda conn: (claims.lock_suspects(conn, "default"), claims.lock_suspects(conn, "default"))),
        ("b", lambda conn: (claims.lock_suspects(conn, "default"), claims.lock_suspects(conn, "other"))),
        ("a", lambda conn: claim(conn, 1, "default")),
        ("a", commit),
        ("b", lambda conn: claims.lock_suspects(conn, "default")),
        ("b", next_suspects),
        ("b", lambda conn: claim(conn, 2, "default")),
    )
    assert said[len(LOST) : len(LOST) + 2] == [[True, True], [False, True]]
    assert said[-3:-1] == [True, {"b2": [4], "b3": [7]}]
    assert said[-1] == "error 23505"
