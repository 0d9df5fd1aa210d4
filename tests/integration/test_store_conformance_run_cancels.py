"""The simulated store behaves like the real Postgres: cancels of single runs."""

from __future__ import annotations

from typing import Any

from tests.support.both_stores import (
    BASE,
    DAY,
    START,
    Both,
    accept,
    begin,
    both,
    claim,
    finish,
    give,
    installation,
    lease_left,
    make_backfill,
)
from tests.support.sessions import commit

from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, backfills, run_cancels, runs
from retrofill_core.store import tables as t

__all__ = ["both", "installation"]


def ids(rows: Any) -> list[int]:
    return [row.id for row in rows]


def test_the_runs_that_a_command_names(both: Both) -> None:
    def found(conn: Any) -> Any:
        day = (START, START + DAY)
        return [
            run_cancels.starting_within(conn, "b1", [(START + 9 * DAY, START + 9 * DAY), day], 9),
            run_cancels.starting_within(conn, "b1", [day], 1),
            run_cancels.with_ids(conn, "b1", [9, 3, 4], after=2),
        ]

    said = both.play(
        *BASE,
        ("a", lambda conn: make_backfill(conn, "b2", 1, START + 9 * DAY)),
        ("a", lambda conn: run_cancels.insert_all(conn, "b1", [2], "ce")),
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
        ("a", lambda conn: run_cancels.mark_release_requested(conn, ["b1"])),
        ("a", lambda conn: backfills.lock_free(conn, ["b1"])[1]),
        ("a", lambda conn: run_cancels.insert_all(conn, "b1", [2, 3, 4, 5], None)),
        ("a", commit),
        ("b", lambda conn: backfills.lock_free(conn, ["b1"])[1]),
        ("b", lambda conn: (lease_left(conn, 1, 2) is None, attempts.to_be_ended(conn, [1, 2]))),
        ("b", lambda conn: run_cancels.mark_release_requested(conn, ["b1", "b2"])),
        ("b", lambda conn: run_cancels.mark_release_requested(conn, ["b1"])),
        ("b", lambda conn: (lease_left(conn, 1, 2) is None, attempts.to_be_ended(conn, [1, 2]))),
        ("b", lambda conn: sorted(run_cancels.among(conn, ["b1"], [1, 2, 3, 9]))),
        ("b", lambda conn: (ids(run_cancels.queued(conn, ["b1"], 9)), ids(run_cancels.queued(conn, ["b1"], 1)))),
        ("b", lambda conn: (run_cancels.backfills_with_any(conn, 0), run_cancels.backfills_with_any(conn, 1))),
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
        ("a", lambda conn: run_cancels.insert_all(conn, "b1", [1, 2], None)),
        ("a", lambda conn: (begin(conn, 1, 1), finish(conn, 1))),
        ("a", lambda conn: backfills.progress(conn, "b1").any_run_cancelled),
        ("a", lambda conn: runs.move(conn, RunState.CANCELLED, [{"id": 2}], {"finished_at": START}, guard=())),
        ("a", lambda conn: backfills.progress(conn, "b1").any_run_cancelled),
        ("a", commit),
    )
    assert (said[-4], said[-2]) == (False, True)
