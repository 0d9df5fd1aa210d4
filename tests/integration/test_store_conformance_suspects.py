"""The simulated store behaves like the real Postgres: suspects, and the server on which they start."""

from __future__ import annotations

from typing import Any

from tests.support.both_stores import (
    DAY,
    NOW,
    SERVER,
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

from retrofill.domain.run import RunState
from retrofill.store import attempts, claims, runs
from retrofill.store import tables as t

__all__ = ["both", "installation"]


def claim(conn: Any, run: int, server: str | None = None) -> int:
    """Start an attempt at one run of the first backfill; returns its id."""
    host = register(conn)
    new = attempts.NewAttempt("b1", 1, "each", run - 1, 1, run, run, {}, "h", host, 1, server)
    (id,) = attempts.insert_all(conn, [new], host, NOW, 30.0)
    give(conn, id, run)
    return id


def lose(conn: Any, attempt: int, run: int, minute: int = 0) -> int:
    given = [{"id": run, "attempt_id": attempt, "lost_at": NOW + minute * DAY}]
    begin(conn, attempt, run)
    over(conn, attempt, "lost")
    return runs.move(conn, RunState.QUEUED, given, {}, [RunState.RUNNING])


def next_suspects(conn: Any, server: str | None = SERVER) -> dict[str, list[int]]:
    found = claims.next_suspects(conn, {"b1": 2, "b2": 2}, server)
    return {id: [row["id"] for row in rows] for id, rows in found.items()}


def waiting(conn: Any) -> list[Any]:
    """Who could use a slot, and with a suspect, on this server and on another one."""
    return [
        sorted((each.id, each.suspects) for each in claims.claimants(conn, 0, {1: 9}, ["b1", "b2"], server).values())
        for server in (SERVER, "sc://other", None)
    ]


# Of the first backfill, all three runs are suspects; the second one belongs to spark-submit.
LOST: list[Step] = [
    put(),
    ("a", lambda conn: make_backfill(conn, "b1")),
    ("a", lambda conn: make_backfill(conn, "b2", first=START + 9 * DAY, executor="spark-submit")),
    ("a", lambda conn: [lose(conn, claim(conn, run), run, minute=9 - run) for run in (1, 2, 3)]),
    ("a", lambda conn: give(conn, claim(conn, 9), 4)),
    ("a", lambda conn: lose(conn, 4, 4)),
    ("a", commit),
]


def test_suspects_wait_for_the_one_that_is_live_on_their_server(both: Both) -> None:
    said = both.play(
        *LOST,
        ("a", waiting),
        ("a", next_suspects),
        ("a", lambda conn: (claims.pipelines_with_suspects(conn, 0), claims.pipelines_with_suspects(conn, 1))),
        ("a", lambda conn: [row["id"] for row in claims.next_queued(conn, {"b1": 9, "b2": 9}).get("b2", [])]),
        ("a", lambda conn: [row["id"] for row in runs.queued(conn, "b1", 2)]),
        ("a", lambda conn: claim(conn, 3, SERVER)),
        ("a", waiting),
        ("a", lambda conn: [next_suspects(conn, server) for server in (SERVER, "sc://other", None)]),
        ("a", lambda conn: over(conn, 5, "lost")),
        ("a", next_suspects),
        ("a", commit),
    )
    both.same_tables(t.attempt, t.run)
    found = said[len(LOST) :]
    # The oldest loss first: of spark-submit's.
    assert found[1] == {"b2": [4], "b1": [3, 2]}
    assert found[5] == 5
    assert found[6][0] != found[6][1]
    assert [sorted(each) for each in found[7]] == [["b2"], ["b1", "b2"], ["b1", "b2"]]


def test_two_suspects_are_never_live_on_one_server(both: Both) -> None:
    """Who cannot lock the server passes over its suspects. Otherwise the index decides."""
    said = both.play(
        *LOST,
        ("a", lambda conn: (claims.lock_suspects(conn, SERVER), claims.lock_suspects(conn, SERVER))),
        ("b", lambda conn: (claims.lock_suspects(conn, SERVER), claims.lock_suspects(conn, "sc://other"))),
        ("a", lambda conn: claim(conn, 1, SERVER)),
        ("a", commit),
        ("b", lambda conn: claims.lock_suspects(conn, SERVER)),
        ("b", next_suspects),
        ("b", lambda conn: claim(conn, 2, SERVER)),
    )
    assert said[len(LOST) : len(LOST) + 2] == [[True, True], [False, True]]
    assert said[-3:-1] == [True, {"b2": [4]}]
    assert said[-1] == "error 23505"
