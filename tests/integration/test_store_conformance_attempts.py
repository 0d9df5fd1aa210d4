"""The simulated store behaves like the real Postgres: attempts, their leases, and who publishes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update
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
    leave,
    make_backfill,
    over,
    put,
    register,
    renew,
)
from tests.support.rows import a_run
from tests.support.sessions import Step, commit, together

from retrofill.sdk.names import MAX_BATCH
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, backfills, claims, hosts, launches, runs
from retrofill_core.store import tables as t
from retrofill_core.store.transition import Plus

__all__ = ["both", "installation"]


def live(conn: Any) -> set[int]:
    return {id for each in claims.taken_slots(conn, [1]).values() for id in each.attempts}


def test_several_attempts_with_several_runs(both: Both) -> None:
    """Each gets its own id, in the order in which they are given."""
    more = attempts.NewAttempt("b2", 1, "publish", 7, 3, 1, 3, {"file": "/p.py", "sha256": "x"}, "h", 1, 3)
    first, second = (attempts.NewAttempt("b1", 1, "each", n, 2, n + 1, n + 1, {}, "h", 1, n + 1) for n in (0, 1))
    said = both.play(
        put(),
        ("a", lambda conn: [make_backfill(conn, id, 4, START + n * 9 * DAY) for n, id in enumerate(["b1", "b2"])]),
        ("a", lambda conn: (register(conn, 3), attempts.insert_all(conn, [second, more, first], [2], NOW, 30.0))),
        ("a", lambda conn: (give(conn, 1, 1, 2), give(conn, 2, 5), give(conn, 3, 2, 3))),
        ("a", lambda conn: attempts.lock(conn, [3, 1, 9])),
        ("a", lambda conn: (begin(conn, 1, 1), begin(conn, 1, 2), begin(conn, 3, 2), begin(conn, 3, 3))),
        ("a", lambda conn: runs.lock(conn, [])),
        ("a", lambda conn: sorted(runs.lock(conn, [4], live_of=[1, 2]))),
        ("a", lambda conn: (finish(conn, 1, 1), finish(conn, 1, 1), sorted(runs.lock(conn, [4], live_of=[1])))),
        ("a", lambda conn: (leave(conn, 1, 2, 3), over(conn, 1, "lost", {"type": "E"}), over(conn, 1))),
        ("a", lambda conn: (claims.taken_slots(conn, [1]), claims.next_queued(conn, {"b1": 9}))),
        ("a", commit),
    )
    assert said[2] == [1, [1, 2, 3]]
    assert said[6:9] == [{}, [1, 2, 4, 5], [1, 0, [2, 4]]]
    both.same_tables(t.attempt, t.run)


def test_earlier_attempts_are_those_that_did_not_end_by_themselves(both: Both) -> None:
    """A publisher has no session that must be closed, and one that is live is not earlier."""

    def find(conn: Any) -> list[tuple[int, list[int]]]:
        rows = conn.execute(select(t.run.c.id, t.run.c.position).order_by(t.run.c.id)).all()
        again = [("b1", rows[:2]), ("b1", rows[2:5]), ("b2", rows)]
        found = sorted(launches.earlier(conn, again), key=lambda each: each.id)
        return [(each.id, [row.id for row in rows if each.has_any("b1", [row])]) for each in found]

    def play(conn: Any) -> list[int]:
        ends = [("each", "done"), ("each", "lost"), ("each", "released"), ("each", "cancelled"), ("publish", "lost")]
        made: list[int] = []
        for mode, outcome in ends:
            id = claim(conn, 1, first=len(made) + 1, count=2, mode=mode)
            made.append(id)
            over(conn, id, outcome)
        return [*made, claim(conn, 1)]

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", days=6)),
        ("a", play),
        ("a", find),
        ("a", lambda conn: launches.earlier(conn, [])),
        ("a", commit),
    )
    assert said[3] == [[2, [2, 3]], [3, [3, 4]], [4, [4, 5]]]


def test_the_largest_attempt_is_an_earlier_one_of_its_first_run_and_of_its_last(both: Both) -> None:
    def play(conn: Any) -> None:
        claim(conn, 1, first=3, count=MAX_BATCH)
        over(conn, 1, "lost")

    def find(conn: Any) -> list[list[int]]:
        # Its runs have the positions from 2 on.
        asked = [1, 2, MAX_BATCH + 1, MAX_BATCH + 2]
        rows = [a_run(position=position) for position in asked]
        return [[each.id for each in launches.earlier(conn, [("b1", [row])])] for row in rows]

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", days=1)),
        ("a", play),
        ("a", find),
        ("a", commit),
    )
    assert said[3] == [[], [1], [1], []]


def test_accepted_runs_are_read_for_as_many_publishers_as_there_may_be(both: Both) -> None:
    def accept(conn: Any) -> int:
        changed = 0
        for attempt, positions in ((7, (1, 2)), (8, (3,))):
            values = {"state": "staged", "outputs": {"folders": []}, "accepted_attempt": attempt}
            changed += conn.execute(update(t.run).where(t.run.c.position.in_(positions)).values(values)).rowcount
        return changed

    def wait(conn: Any) -> int:
        values = {"review": 1, "attempt_id": None}
        return int(conn.execute(update(t.run).where(t.run.c.position == 2).values(values)).rowcount)

    def approve(conn: Any) -> int:
        values = {"review": True, "approved_at": NOW, "approvals": 1}
        return int(conn.execute(update(t.backfill).where(t.backfill.c.id == "b1").values(values)).rowcount)

    def found(conn: Any, wanted: dict[str, tuple[int, int]]) -> dict[str, list[list[int]]]:
        """The positions of those that one publisher takes."""
        found = claims.staged(conn, wanted, live(conn)).items()
        return {id: [[row.position for row in each.runs] for each in together] for id, together in found}

    def held(conn: Any) -> tuple[list[int], list[bool], dict[str, int], list[str]]:
        """What waits for the second review, and what the planner would see of that."""
        progress = backfills.progress(conn, "b1")
        waits = [row.position for row in runs.held(conn, "b1", 1, 9)]
        seen = [progress.any_held, progress.any_publishing]
        return waits, seen, backfills.approvals(conn, ["b1", "b2"]), runs.backfills_to_publish(conn, 0)

    said = both.play(
        put(),
        ("a", lambda conn: [make_backfill(conn, id, 4, START + n * 9 * DAY) for n, id in enumerate(["b1", "b2"])]),
        ("a", lambda conn: found(conn, {"b1": (9, 1)})),
        ("a", accept),
        (
            "a",
            lambda conn: (
                found(conn, {"b2": (1, 1), "b1": (9, 1)}),
                sorted(claims.to_publish(conn, {"b1": 0, "b2": 1})),
            ),
        ),
        # The third day of each was approved, and changed by somebody since.
        ("a", lambda conn: (wait(conn), approve(conn))),
        ("a", lambda conn: (found(conn, {"b2": (9, 1), "b1": (9, 0)}), found(conn, {"b2": (9, 9), "b1": (9, 2)}))),
        ("a", held),
        ("a", lambda conn: backfills.reviewed_again(conn, "b1")),
        ("a", commit),
    )
    assert said[2:5] == [{}, 6, [{"b2": [[1, 2], [3]], "b1": [[1, 2], [3]]}, ["b2"]]]
    assert said[6] == [{"b2": [[1], [3]]}, {"b2": [[1, 2], [3]], "b1": [[1, 2], [3]]}]
    assert said[7] == [[2], [True, True], {"b1": 1}, ["b1", "b2"]]


def test_what_pauses_hides_nothing_that_may_be_published(both: Both) -> None:
    """The first runs pause, by a moment to come; one did before. The code is that of the attempt that staged it."""

    def accept(conn: Any) -> None:
        id = claim(conn, 1, count=5)
        over(conn, id, "lost")
        values = {"state": "staged", "outputs": {"folders": []}, "accepted_attempt": id}
        conn.execute(update(t.run).values(values))
        conn.execute(update(t.run).where(t.run.c.position < 2).values(publish_after=func.clock_timestamp() + DAY))
        conn.execute(update(t.run).where(t.run.c.position == 3).values(publish_after=func.clock_timestamp() - DAY))

    def found(conn: Any) -> list[Any]:
        (staged,) = claims.staged(conn, {"b1": (2, 1)}, live(conn))["b1"]
        codes = conn.execute(select(t.attempt.c.code)).scalars().all()
        return [[row.position for row in staged.runs], staged.code in codes]

    def pause_all(conn: Any) -> None:
        conn.execute(update(t.run).values(publish_after=func.clock_timestamp() + DAY))

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", days=5)),
        ("a", accept),
        ("a", found),
        ("a", lambda conn: runs.backfills_to_publish(conn, 0)),
        ("a", pause_all),
        ("a", lambda conn: (claims.staged(conn, {"b1": (9, 1)}, live(conn)), runs.backfills_to_publish(conn, 0))),
        ("a", lambda conn: sorted(claims.to_publish(conn, {"b1": 1}))),
        ("a", commit),
    )
    assert said[7] == []
    assert said[3:5] == [[[2, 3, 4], True], ["b1"]]
    assert list(said[6]) == [{}, []]


def test_attempts_that_may_still_publish_are_those_that_did_not_end_by_themselves(both: Both) -> None:
    """Publishers, and those that executed it. One that is live, or reported its end, has nothing under way."""

    def play(conn: Any) -> None:
        ends = [("each", "lost"), ("publish", "lost"), ("publish", "released"), ("publish", "done"), ("each", "done")]
        for mode, outcome in ends:
            over(conn, claim(conn, 1, mode=mode), outcome)
        claim(conn, 1, mode="publish")

    def found(conn: Any) -> list[int]:
        rows = conn.execute(select(t.run.c.id, t.run.c.position).order_by(t.run.c.id)).all()
        return sorted(each.id for each in launches.publishers(conn, [("b1", rows[:1])]))

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", days=2)),
        ("a", play),
        ("a", found),
        ("a", lambda conn: launches.publishers(conn, [])),
        ("a", commit),
    )
    assert said[3:5] == [[1, 2, 3], []]


def test_ranges_of_which_other_runs_are_to_be_published(both: Both) -> None:
    """By themselves, or by a publisher, or after a review. Of the second range, nothing was accepted."""

    def found(conn: Any) -> list[tuple[int, list[int]]]:
        rows = conn.execute(select(t.run.c.id, t.run.c.position).order_by(t.run.c.id)).all()
        again = launches.unpublished(conn, [("b1", rows[:1]), ("b1", rows[3:]), ("b2", rows)])
        again.sort(key=lambda each: each.id)
        return [(each.id, [row.id for row in rows if each.has_any("b1", [row])]) for each in again]

    def play(conn: Any) -> None:
        for first, ids in ((1, (1, 2, 3)), (4, (4, 5, 6))):
            range = claim(conn, first, first=first, count=3, mode="range")
            give(conn, range, *ids)
            begin(conn, range, *ids)

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", days=6)),
        ("a", play),
        ("a", lambda conn: (accept(conn, 1, 1), finish(conn, 1, 1, RunState.FAILED), found(conn))),
        ("a", lambda conn: (leave(conn, 2, 4, 5, 6), over(conn, 2, "lost"))),
        ("a", lambda conn: (accept(conn, 1, 2), leave(conn, 1, 3), found(conn))),
        ("a", lambda conn: (leave(conn, 1, 2, to=RunState.STAGED), over(conn, 1, "lost"), found(conn))),
        ("a", lambda conn: claim(conn, 1, first=2, mode="publish")),
        ("a", lambda conn: (give(conn, 3, 2, to=RunState.PUBLISHING, before=RunState.STAGED), found(conn))),
        ("a", lambda conn: (finish(conn, 2, 3), found(conn))),
        ("a", commit),
    )
    first, second = [1, [1, 2, 3]], [2, [4, 5, 6]]
    assert [said[n][-1] for n in (3, 5, 6, 8, 9)] == [[first, second], [first], [first], [first], []]


def test_a_host_renews_the_leases_of_its_own_live_attempts_that_it_has_acknowledged(both: Both) -> None:
    """By their own length. What another transaction has locked is passed over."""

    def left(conn: Any) -> list[float | None]:
        return [lease_left(conn, attempt, attempt) for attempt in (1, 2, 3)]

    def unacknowledged(conn: Any) -> Any:
        conn.execute(update(t.seat).where(t.seat.c.attempt_id == 2).values(acknowledged_at=None))

    by_any = partial(attempts.renew, ids=[1, 2, 3, 9], own=[1, 2, 3])
    said = both.play(
        *BASE,
        ("a", lambda conn: [(claim(conn, n, n), give(conn, n, n)) for n in (1, 2, 3)]),
        ("a", lambda conn: conn.execute(update(t.attempt).values(lease_seconds=t.attempt.c.id * 100.0)).rowcount),
        ("a", lambda conn: sorted(attempts.renew(conn, [1, 2], [2, 3]))),
        ("a", lambda conn: sorted(attempts.renew(conn, [1], [1, 2]))),
        ("a", left),
        ("a", unacknowledged),
        ("a", lambda conn: sorted(by_any(conn))),
        ("a", lambda conn: over(conn, 3, "lost")),
        ("a", lambda conn: sorted(by_any(conn))),
        ("a", commit),
        ("b", lambda conn: sorted(attempts.lock(conn, [1]))),
        ("a", lambda conn: sorted(by_any(conn))),
        ("b", commit),
        ("a", lambda conn: sorted(by_any(conn))),
        ("a", commit),
    )
    assert [said[n] for n in (5, 6, 9, 11, 14, 16)] == [[2], [1], [1, 3], [1], [], [1]]
    assert said[7][:2] == [10, 20]


def test_a_host_is_silent_once_half_of_its_lease_is_over_or_its_row_is_gone(both: Both) -> None:
    """Measured by the length of the attempt's own lease, which is 30 seconds here."""

    def lasts(host: int, seconds: float) -> Step:
        return ("a", lambda conn: hosts.renew(conn, host, seconds, submits=False, note=None))

    said = both.play(
        *BASE,
        ("a", lambda conn: [claim(conn, n, n) for n in (1, 2, 3)]),
        *(lasts(host, seconds) for host, seconds in ((1, 3600.0), (2, 10.0), (3, 20.0))),
        ("a", lambda conn: conn.execute(update(t.attempt).where(t.attempt.c.id == 3).values(host_id=None)).rowcount),
        ("a", lambda conn: sorted(hosts.silent(conn, [1, 2, 3, 9]))),
        ("a", lambda conn: sorted(hosts.silent(conn, [1]))),
        ("a", commit),
    )
    assert said[-3:-1] == [[2, 3], []]


def test_what_is_left_of_a_lease(both: Both) -> None:
    """Of a live attempt that may begin a run of its own, also after it seems to have ended."""
    said = both.play(
        *BASE,
        ("a", lambda conn: lease_left(conn, 1)),
        ("a", lambda conn: (claim(conn, 1, count=2), give(conn, 1, 1, 2))),
        ("a", lambda conn: renew(conn, 1, 120)),
        ("b", lambda conn: lease_left(conn, 1)),
        ("a", commit),
        ("b", lambda conn: (lease_left(conn, 1), lease_left(conn, 1, 2))),
        ("b", lambda conn: (lease_left(conn, 1, 3), lease_left(conn, 9, 1), lease_left(conn, 9, 9))),
        (
            "a",
            together(
                lambda conn: renew(conn, 1, -120), lambda conn: lease_left(conn, 1), lambda conn: renew(conn, 1, 120)
            ),
        ),
        # One that has begun or ended does not begin again, and the next one may.
        ("a", lambda conn: (begin(conn, 1, 1), lease_left(conn, 1, 1), lease_left(conn, 1, 2))),
        ("a", lambda conn: (finish(conn, 1, 1), lease_left(conn, 1, 1), lease_left(conn, 1, 2))),
        ("a", lambda conn: (over(conn, 1, "lost"), lease_left(conn, 1, 2))),
        ("a", commit),
    )
    assert said[len(BASE) :] == [
        *(None, [1, 2], None),
        *(None, None, [12, 12]),
        [None, None, None],
        [None, -12, None],
        [[1, 1], None, 12],
        [1, None, 12],
        [1, None],
        None,
    ]


CHANGES: dict[str, tuple[str, Callable[[Any], Any], bool]] = {
    "paused": ("continue", lambda conn: backfills.move(conn, "b1", BackfillState.PAUSED, "running"), False),
    "to be cancelled": ("continue", lambda conn: attempts.mark_cancel_requested(conn, "b1"), False),
    "a run failed": ("pause", lambda conn: finish(conn, 1, 1, RunState.FAILED), False),
    "a run failed, others go on": ("continue", lambda conn: finish(conn, 1, 1, RunState.FAILED), True),
}


@pytest.mark.parametrize(("on_run_failure", "change", "begins"), CHANGES.values(), ids=CHANGES)
def test_a_run_does_not_begin_where_its_backfill_must_not_go_on(
    both: Both, on_run_failure: str, change: Callable[[Any], Any], begins: bool
) -> None:
    """Output that was accepted is published in any case."""
    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", on_run_failure=on_run_failure)),
        ("a", lambda conn: (claim(conn, 1, count=2), give(conn, 1, 1, 2), begin(conn, 1, 1))),
        ("a", lambda conn: (claim(conn, 2, 3), give(conn, 2, 3), begin(conn, 2, 3), accept(conn, 2, 3))),
        ("a", together(lambda conn: renew(conn, 1, 120), lambda conn: renew(conn, 2, 120))),
        ("a", lambda conn: (lease_left(conn, 1, 2), lease_left(conn, 2, 3))),
        ("a", change),
        ("a", lambda conn: (lease_left(conn, 1, 2), lease_left(conn, 2, 3))),
        ("a", commit),
    )
    assert said[5] == [12, 12]
    assert said[7] == [12 if begins else None, 12]


def test_drivers_to_be_ended(both: Both) -> None:
    """Those whose attempt is over or to be cancelled, unless they only publish. One that reported its
    end is about to be free.
    """
    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", days=6)),
        ("a", lambda conn: [claim(conn, slot, slot) for slot in range(1, 6)]),
        ("a", lambda conn: [give(conn, id, id) for id in range(1, 6)]),
        ("a", lambda conn: [begin(conn, id, id) for id in (1, 2, 3)]),
        ("a", lambda conn: (accept(conn, 3, 3), end(conn, 1), leave(conn, 2, 2), over(conn, 2, "lost"))),
        ("a", lambda conn: sorted(attempts.to_be_ended(conn, [1, 2, 3, 4, 5, 9]))),
        ("a", lambda conn: sorted(attempts.mark_cancel_requested(conn, "b1"))),
        ("a", lambda conn: sorted(attempts.to_be_ended(conn, [1, 2, 3, 4, 5, 9]))),
        ("a", lambda conn: attempts.to_be_ended(conn, [])),
        ("a", commit),
    )
    assert said[6:10] == [[2, 9], [3, 4, 5], [2, 4, 5, 9], []]


def test_a_staged_run_is_published_by_another(both: Both) -> None:
    adopt = {"publication": Plus(1)}
    said = both.play(
        *BASE,
        ("a", lambda conn: (claim(conn, 1, count=2), give(conn, 1, 1, 2), begin(conn, 1, 1, 2))),
        (
            "a",
            lambda conn: (
                attempts.accepted(conn, 1, [1]),
                attempts.accepted(conn, 9, [1]),
                attempts.accepted(conn, 1, [9]),
            ),
        ),
        ("a", lambda conn: (accept(conn, 1, 1), attempts.accepted(conn, 1, [1]), attempts.accepted(conn, 1, [2]))),
        ("a", lambda conn: (claims.staged(conn, {"b1": (9, 1)}, live(conn)), runs.backfills_to_publish(conn, 0))),
        ("a", lambda conn: (leave(conn, 1, 1, to=RunState.STAGED), leave(conn, 1, 2), over(conn, 1, "lost"))),
        (
            "a",
            lambda conn: (
                attempts.accepted(conn, 1, [1]),
                attempts.accepted(conn, 1, [2]),
                runs.count_unfinished(conn),
            ),
        ),
        ("a", lambda conn: (claims.staged(conn, {"b1": (9, 1), "b2": (9, 1)}, live(conn)), attempts.leases(conn, 0))),
        ("a", lambda conn: (runs.backfills_to_publish(conn, 0), runs.backfills_to_publish(conn, 1))),
        ("a", lambda conn: (backfills.progress(conn, "b1"), backfills.to_be_decided(conn, ["b1"]))),
        ("a", commit),
        ("a", lambda conn: (claim(conn, 1, mode="publish"), give(conn, 2, 1, to="publishing", before="staged"))),
        ("b", lambda conn: give(conn, 9, 1, to="publishing", before="staged")),
        ("a", lambda conn: runs.move(conn, "succeeded", [{"id": 1, "attempt_id": 1}], {"finished_at": NOW})),
        ("a", commit),
        (
            "b",
            together(
                lambda conn: claims.staged(conn, {"b1": (9, 1)}, live(conn)),
                lambda conn: renew(conn, 2, 120),
                lambda conn: lease_left(conn, 2, 1),
            ),
        ),
        # Its publisher is the attempt that has it, not the one that staged it.
        ("b", lambda conn: (attempts.accepted(conn, 1, [1]), attempts.accepted(conn, 2, [1]))),
        ("b", lambda conn: attempts.to_be_ended(conn, [1, 2])),
        ("b", lambda conn: runs.move(conn, "staged", [{"id": 1, "attempt_id": 2}], adopt)),
        ("b", lambda conn: (attempts.accepted(conn, 2, [1]), attempts.accepted(conn, 2, [1, 2]))),
        ("b", lambda conn: (claims.staged(conn, {"b1": (9, 1)}, live(conn)), launches.accepted_of(conn, [1, 2]))),
        ("b", commit),
    )
    said = said[len(BASE) :]
    assert said[1:3] == [[None, False, False], [1, True, None]]
    # The second run waits for another attempt: it is not published by this one.
    assert said[5][:2] == [False, False]
    assert said[7] == [["b1"], []]
    assert said[11:13] == [["waited", 0], 0]
    assert said[15:17] == [[False, True], [1]]
    both.same_tables(t.run, t.attempt)


LIVE_ATTEMPT = {
    "backfill_id": "b1",
    "pipeline_no": 1,
    "mode": "each",
    "position": 0,
    "runs": 1,
    "state": "starting",
    "slot": 2,
    "pipeline_slot": 2,
    "host": "h",
    "lease_until": NOW,
    "lease_seconds": 30.0,
    "code": {},
}


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({}, None),
        ({"state": "nonsense"}, "23514"),
        # Of the backfill or of the pipeline: two live attempts never hold the same slot.
        ({"slot": 1}, "23505"),
        ({"pipeline_slot": 1}, "23505"),
        ({"slot": 0}, "23514"),
        ({"slot": None}, "23514"),
        ({"pipeline_slot": None}, "23514"),
        ({"lease_until": None}, "23514"),
        ({"lease_seconds": None}, "23502"),
        ({"runs": 0}, "23514"),
        ({"ended_at": NOW}, "23514"),
        ({"outcome": "done"}, "23514"),
        ({"state": "ended", "ended_at": NOW, "outcome": "done"}, "23514"),
        ({"state": "ended", "ended_at": NOW, **attempts.NOT_LIVE}, "23514"),
        ({"state": "ended", "outcome": "done", **attempts.NOT_LIVE}, "23514"),
        ({"state": "ended", "ended_at": NOW, "outcome": "gone", **attempts.NOT_LIVE}, "23514"),
        ({"state": "ended", "ended_at": NOW, "outcome": "done", **attempts.NOT_LIVE}, None),
        ({"backfill_id": "unknown"}, "23503"),
    ],
)
def test_constraints_of_attempts(both: Both, values: dict[str, Any], code: str | None) -> None:
    put_in: Step = ("a", lambda conn: conn.execute(insert(t.attempt).values({**LIVE_ATTEMPT, **values})) and None)
    said = both.play(*BASE, ("a", lambda conn: claim(conn, 1)), put_in, ("a", commit))
    assert said[-2] == (None if code is None else f"error {code}")
    both.same_tables(t.attempt)
