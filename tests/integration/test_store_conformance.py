"""The simulated store behaves like the real Postgres: the same scripts of pipelines, backfills and
runs, the outbox and constraints run on both, and results and tables are compared.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, update
from tests.support.both_stores import (
    BASE,
    DAY,
    NOW,
    START,
    Both,
    begin,
    both,
    claim,
    end,
    finish,
    give,
    installation,
    make_backfill,
    plan_of,
    put,
    start,
)
from tests.support.sessions import Step, commit, together

from retrofill_core import deadlines as arming
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, backfills, claims, conditions, deadlines, outbox, pipelines, planning, runs
from retrofill_core.store import tables as t

__all__ = ["both", "installation"]


def test_pipelines(both: Both) -> None:
    both.play(
        put(),
        put(),
        put(max_active_runs=3),
        ("a", lambda conn: list(pipelines.find(conn, ["p", "q"]))),
        ("a", lambda conn: (pipelines.remove(conn, "p"), pipelines.remove(conn, "p"), pipelines.all_names(conn))),
        put(max_active_runs=3),
        ("a", together(*[lambda conn: pipelines.expect_copy(conn, "c", b"x")] * 2)),
        ("a", lambda conn: (pipelines.is_copy(conn, "c", b"y"), pipelines.is_copy(conn, "c", b"x"))),
        ("a", commit),
    )
    both.same_tables(t.pipeline, t.pipeline_copy)


def test_a_backfill_from_plan_to_end(both: Both) -> None:
    both.play(
        *BASE,
        ("a", lambda conn: planning.history(conn, 1, plan_of(2).intervals)),
        ("a", lambda conn: backfills.lock_free(conn, ["b1", "b2"])),
        ("a", lambda conn: claims.lock_pipelines(conn, [1, 9])[0]),
        ("a", lambda conn: (claims.taken_slots(conn, [1]), claims.claimants(conn, 0, {1: 1}, ["b1", "b2"]))),
        (
            "a",
            lambda conn: (claims.claimants(conn, 0, {1: 1}, []), claims.claimants(conn, 1, {1: 1}, [])),
        ),
        ("a", lambda conn: claims.next_queued(conn, {"b2": 1, "b1": 2})),
        ("a", lambda conn: (start(conn, 1, 1), start(conn, 2, 2), give(conn, 1, 1))),
        ("a", lambda conn: (claims.taken_slots(conn, [1]), claims.claimants(conn, 0, {1: 1}, ["b1", "b2"]))),
        ("a", lambda conn: (begin(conn, 1, 1), begin(conn, 2, 2), begin(conn, 1, 1))),
        ("a", lambda conn: runs.create_tasks(conn, [(1, 1, "x"), (1, 1, "y"), (2, 1, "x"), (2, 1, "y")])),
        ("a", lambda conn: runs.task_states(conn, [(1, 1), (2, 7)])),
        ("a", lambda conn: (attempts.leases(conn, 0), attempts.leases(conn, 1))),
        ("a", lambda conn: attempts.extend_leases(conn, {1: NOW + 2 * DAY, 9: NOW})),
        ("a", lambda conn: (end(conn, 1), end(conn, 1), finish(conn, 2, attempt=9))),
        ("a", lambda conn: runs.cancel_open_tasks(conn, [(1, 1)], NOW)),
        ("a", lambda conn: (attempts.mark_cancel_requested(conn, "b1"), attempts.mark_cancel_requested(conn, "b1"))),
        ("a", lambda conn: attempts.to_be_ended(conn, [1, 2, 9])),
        ("a", lambda conn: backfills.progress(conn, "b1")),
        ("a", lambda conn: (backfills.run_counts(conn, "b1"), runs.count_unfinished(conn))),
        ("a", lambda conn: deadlines.backfill_facts(conn, ["b1", "b2"])),
        ("a", lambda conn: end(conn, 2, state=RunState.FAILED)),
        ("a", lambda conn: (conditions.count_failed(conn, "b1"), backfills.progress(conn, "b1"))),
        ("a", lambda conn: planning.history(conn, 1, plan_of(9).intervals)),
        ("a", lambda conn: arming.last_runtimes(conn, 1, 5)),
        ("a", lambda conn: backfills.move(conn, "b1", BackfillState.CANCELLING, "running", {"cancel_cause": "user"})),
        ("a", lambda conn: (backfills.still_active(conn, ["b1", "b2"]), backfills.active(conn, 0))),
        ("a", commit),
    )
    both.same_tables(t.backfill, t.backfill_interval, t.run, t.attempt, t.task_run)


def test_who_is_of_no_use_takes_no_place_among_the_claimants(both: Both) -> None:
    def of(shard: int, most: int, *unusable: str) -> Step:
        return ("a", lambda conn: sorted(claims.claimants(conn, shard, {1: most}, ["b1"], unusable)))

    made = [("a", lambda conn, n=n: make_backfill(conn, f"b{n}", first=START + n * 9 * DAY)) for n in range(2, 6)]
    said = both.play(
        *BASE,
        *made,
        ("a", lambda conn: start(conn, 1, 1)),
        ("a", lambda conn: requested_in_order(conn, [f"b{n}" for n in range(2, 6)])),
        of(0, 2),
        of(0, 2, "b2", "b3", "nobody"),
        of(0, 2, "b2", "b3", "b4", "b5"),
        # With a live attempt it takes no place.
        of(0, 2, "b1", "b2"),
        of(1, 2, "b2", "b3", "b4"),
        ("a", commit),
    )
    assert said[-6:-1] == [["b1", "b2", "b3"], ["b1", "b4", "b5"], ["b1"], ["b1", "b3", "b4"], ["b1", "b5"]]


def requested_in_order(conn: Any, ids: list[str]) -> None:
    for n, id in enumerate(ids):
        conn.execute(update(t.backfill).where(t.backfill.c.id == id).values(requested_at=NOW + n * DAY))


def test_a_failure_that_was_read_before_a_resume_and_committed_after_it_counts(both: Both) -> None:
    """A resume accepts only the failures committed before it. One that failed before the resume but
    committed after it still counts.
    """

    def resume(conn: Any) -> bool:
        values = {"resumed_at": NOW + DAY, "failed_before": conditions.count_failed(conn, "b1")}
        return backfills.move(conn, "b1", BackfillState.RUNNING, "paused", values)

    said = both.play(
        put(),
        ("a", lambda conn: make_backfill(conn, "b1", on_run_failure="pause")),
        ("a", lambda conn: (start(conn, 1, 1), start(conn, 2, 2), end(conn, 1, state=RunState.FAILED))),
        ("a", commit),
        ("b", lambda conn: backfills.move(conn, "b1", BackfillState.PAUSED, "running")),
        ("b", commit),
        ("a", lambda conn: end(conn, 2, state=RunState.FAILED)),
        ("b", resume),
        ("b", lambda conn: (backfills.progress(conn, "b1"), list(claims.claimants(conn, 0, {1: 1}, ["b1"])))),
        ("b", commit),
        ("a", commit),
        ("b", lambda conn: (backfills.progress(conn, "b1"), list(claims.claimants(conn, 0, {1: 1}, ["b1"])))),
        ("b", lambda conn: backfills.to_be_decided(conn, ["b1"])),
        ("b", commit),
    )
    standing = {"any_unfinished": True, "any_open": True, "any_failed": True, "any_run_cancelled": False}
    standing |= {"any_held": False, "any_publishing": False}
    assert said[8] == [{**standing, "failed_since_resume": False}, ["b1"]]
    assert said[11:13] == [[{**standing, "failed_since_resume": True}, []], ["b1"]]


def test_the_outbox_and_the_relay_row(both: Both) -> None:
    own = t.SERVICE_TABLES["run_starter"]
    message = outbox.Outgoing("x", b"k", b"\xff", (("a", b"\xff"), ("b", None), ("c", b"t")))
    rows: Step = ("a", lambda conn: outbox.insert_rows(conn, own, [message, message]))
    both.play(
        rows,
        rows,
        ("a", lambda conn: conn.execute(select(own.outbox).order_by(own.outbox.c.id).limit(3)).mappings().all()),
        ("a", lambda conn: conn.execute(delete(own.outbox).where(own.outbox.c.id == func.any([1, 3, 9]))).rowcount),
        ("a", commit),
    )
    both.same_tables(own.outbox)


@pytest.mark.parametrize(
    "values",
    [
        {"state": "nonsense"},
        {"state": "starting"},
        {"state": "staged"},
        {"state": "publishing", "attempt_id": 1, "outputs": {"folders": ["/o"]}},
        {"state": "staged", "accepted_attempt": 1},
        {"attempt_id": 9},
        {"finished_at": NOW},
        {"interval_end": START},
        {"backfill_id": "unknown"},
        {"position": 0},
        {"interval_start": START, "position": 9},
        {"position": None},
    ],
)
def test_constraints(both: Both, values: dict[str, Any]) -> None:
    good = {
        "backfill_id": "b1",
        "pipeline_no": 1,
        "interval_start": START + 20 * DAY,
        "interval_end": START + 21 * DAY,
        "position": 20,
        "state": "queued",
    }
    put_in: Step = ("a", lambda conn: conn.execute(insert(t.run).values({**good, **values})) and None)
    said = both.play(*BASE, ("a", lambda conn: claim(conn, 1)), put_in)
    assert str(said[-1]).startswith("error 23")


def test_a_savepoint_undoes_what_came_after_it(both: Both) -> None:
    def nested(conn: Any) -> str:
        start(conn, 1, 1)
        try:
            with conn.begin_nested():
                start(conn, 2, 2)
                conn.execute(update(t.run).where(t.run.c.id == 3).values(state="nonsense"))
        except Exception as e:  # noqa: BLE001 - that it fails is the point
            return type(e).__name__
        return "no error"

    both.play(*BASE, ("a", nested), ("a", lambda conn: start(conn, 3, 2)), ("a", commit))
    both.same_tables(t.run, t.attempt)


def test_a_failed_transaction_does_nothing_more(both: Both) -> None:
    both.play(
        *BASE,
        ("a", lambda conn: start(conn, 1, 1)),
        ("a", lambda conn: conn.execute(update(t.run).where(t.run.c.id == 3).values(state="nonsense"))),
        ("a", lambda conn: start(conn, 2, 2)),
        ("a", commit),
        ("a", lambda conn: start(conn, 3, 1)),
        ("a", commit),
    )
    both.same_tables(t.run, t.attempt)
