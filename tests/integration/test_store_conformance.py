"""The simulated store behaves like the real Postgres: the same scripts run on both, and results and
tables are compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from tests.support.installation import PARTITIONS, Installation, Servers, alert, daily
from tests.support.sessions import MemoryStore, RealStore, Step, commit, fields, rollback

from retrofill.deadlines import rows as arming
from retrofill.domain.alert import DeadlineAlert
from retrofill.domain.backfill import BackfillState
from retrofill.domain.deadline import Arming, DeadlineState, due_at_planning
from retrofill.domain.planning import Plan, find_boundaries, plan
from retrofill.domain.run import RunState
from retrofill.store import (
    backfills,
    callbacks,
    claims,
    deadlines,
    digests,
    failures,
    outbox,
    pipelines,
    planning,
    runs,
    subjects,
    task_runs,
)
from retrofill.store import tables as t
from retrofill.store.clock import database_now
from retrofill.store.engine import make_engine
from retrofill.store.transition import Plus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
START = datetime(2020, 1, 1, tzinfo=UTC)


class Both:
    """Plays scripts on both stores and compares the results."""

    def __init__(self, installation: Installation) -> None:
        self.engine = make_engine(installation.settings.dsn_of("owner"), "conformance", pool_size=5)
        self.real, self.memory = RealStore(self.engine), MemoryStore()

    def play(self, *steps: Step) -> list[Any]:
        """Play on both stores, which must return the same. Returns the results."""
        real, memory = self.real.play(steps), self.memory.play(steps)
        assert memory == real
        return real

    def same_tables(self, *tables: Any) -> None:
        """Assert that both stores have the same committed rows."""
        for table in tables:
            rows: list[Callable[[Any], Any]] = [
                lambda conn, table=table: sorted(  # type: ignore[misc]
                    ([fields(each) for each in row] for row in conn.execute(select(table)).all()), key=repr
                )
            ]
            self.play(("look", rows[0]))


@pytest.fixture(scope="module")
def installation(servers: Servers) -> Iterator[Installation]:
    """Shared by all of these tests; each starts with empty tables."""
    made = servers.installation()
    yield made
    made.close()


@pytest.fixture
def both(installation: Installation) -> Iterator[Both]:
    made = Both(installation)
    with made.engine.begin() as conn:
        names = ", ".join(f"retrofill.{name.name}" for name in t.metadata.sorted_tables if name is not t.installation)
        conn.execute(text(f"TRUNCATE {names} RESTART IDENTITY"))
    yield made
    made.engine.dispose()


def put(name: str = "p", **more: Any) -> Step:
    return ("a", lambda conn: pipelines.put(conn, daily(name, **more)))


def plan_of(days: int, first: datetime = START) -> Plan:
    boundaries = find_boundaries(daily(), first, first + (days - 1) * DAY, 1000)
    made = plan(daily(), boundaries, planning.History([], {}), "completed", NOW)  # type: ignore[arg-type]
    assert isinstance(made, Plan)
    return made


def make_backfill(
    conn: Any, id: str, days: int = 3, first: datetime = START, pipeline: int = 1, on_run_failure: str = "continue"
) -> int:
    made = plan_of(days, first)
    values = {
        "id": id,
        "pipeline_no": pipeline,
        "pipeline": "p",
        "shard": 0,
        "max_active_runs": 2,
        "reprocess_behavior": "none",
        "run_backwards": False,
        "on_run_failure": on_run_failure,
        "conf": {"a": [1, None]},
        "triggered_by": None,
        "definition": daily().as_json(),
        "traceparent": None,
    }
    planning.insert_backfill(conn, values, made)
    planning.insert_runs(conn, id, pipeline, made, NOW, backwards=False)
    return made.runs


def start(conn: Any, id: int, slot: int) -> int:
    given = [{"id": id, "attempt": 0, "slot": slot, "pipeline_slot": slot}]
    return runs.move(conn, RunState.STARTING, given, {"attempt": Plus(1), "lease_until": NOW}, ["queued"])


def end(conn: Any, id: int, attempt: int = 1, state: str = RunState.SUCCEEDED) -> int:
    values = {**runs.NOT_LIVE, "finished_at": NOW}
    return runs.move(conn, state, [{"id": id, "attempt": attempt}], values)


def renew(conn: Any, id: int, seconds: float) -> None:
    """Let the lease of the first attempt end in so many seconds, by the store's own clock."""
    runs.extend_leases(conn, {(id, 1): database_now(conn) + timedelta(seconds=seconds)})


def lease_left(conn: Any, id: int, publication: int = 0, attempt: int = 1) -> float | None:
    """In tens of seconds, because the stores read it at different times; at most an hour."""
    left = runs.lease_left(conn, id, attempt, publication)
    return None if left is None else round(max(-3600.0, min(left, 3600.0)) / 10)


def orphan(conn: Any, *lost: tuple[int, int, int]) -> int:
    return runs.orphan(conn, [runs.LostPublisher(*one, losses={"last": [{"reason": "gone"}]}) for one in lost])


def lock_run(id: int, **how: Any) -> Callable[[Any], Any]:
    return lambda conn: conn.execute(
        select(t.run.c.id, t.run.c.state).where(t.run.c.id == id).with_for_update(**how)
    ).all()


BASE: list[Step] = [put(), ("a", lambda conn: make_backfill(conn, "b1")), ("a", commit)]


# one session


def test_pipelines(both: Both) -> None:
    both.play(
        put(),
        put(),
        put(max_active_runs=3),
        ("a", lambda conn: list(pipelines.find(conn, ["p", "q"]))),
        ("a", lambda conn: (pipelines.remove(conn, "p"), pipelines.remove(conn, "p"), pipelines.all_names(conn))),
        put(max_active_runs=3),
        ("a", lambda conn: (pipelines.expect_copy(conn, "c", b"x"), pipelines.expect_copy(conn, "c", b"x"))),
        ("a", lambda conn: (pipelines.is_copy(conn, "c", b"y"), pipelines.is_copy(conn, "c", b"x"))),
        ("a", commit),
    )
    both.same_tables(t.pipeline, t.pipeline_copy)


def test_a_backfill_from_plan_to_end(both: Both) -> None:
    both.play(
        *BASE,
        ("a", lambda conn: planning.history(conn, 1, START, START + 2 * DAY)),
        ("a", lambda conn: backfills.lock_free(conn, ["b1", "b2"])),
        ("a", lambda conn: claims.lock_pipelines(conn, [1, 9])),
        ("a", lambda conn: (claims.taken_slots(conn, [1]), claims.claimants(conn, 0, {1: 1}, ["b1", "b2"]))),
        ("a", lambda conn: (claims.claimants(conn, 0, {1: 1}, []), claims.claimants(conn, 1, {1: 1}, []))),
        ("a", lambda conn: claims.next_queued(conn, {"b2": 1, "b1": 2})),
        ("a", lambda conn: (start(conn, 1, 1), start(conn, 1, 1), start(conn, 2, 2))),
        ("a", lambda conn: (claims.taken_slots(conn, [1]), claims.claimants(conn, 0, {1: 1}, ["b1", "b2"]))),
        ("a", lambda conn: task_runs.create(conn, [(1, 1, "x"), (1, 1, "y"), (2, 1, "x"), (2, 1, "y")])),
        ("a", lambda conn: task_runs.find(conn, [(1, 1), (2, 7)])),
        (
            "a",
            lambda conn: (runs.leases(conn, 0), runs.leases(conn, 1)),
        ),
        ("a", lambda conn: runs.extend_leases(conn, {(1, 1): NOW + 2 * DAY, (2, 9): NOW})),
        ("a", lambda conn: (end(conn, 1), end(conn, 1), end(conn, 2, attempt=9))),
        ("a", lambda conn: task_runs.cancel_open(conn, [(1, 1)], NOW)),
        ("a", lambda conn: runs.mark_cancel_requested(conn, "b1")),
        ("a", lambda conn: runs.to_be_ended(conn, [(1, 1, 0), (2, 1, 0), (2, 1, 1), (3, 1, 0)])),
        ("a", lambda conn: (lease_left(conn, 1), lease_left(conn, 2))),
        ("a", lambda conn: backfills.progress(conn, "b1")),
        ("a", lambda conn: (backfills.run_counts(conn, "b1"), runs.count_unfinished(conn))),
        ("a", lambda conn: subjects.backfill_facts(conn, ["b1", "b2"])),
        ("a", lambda conn: end(conn, 2, state=RunState.FAILED)),
        ("a", lambda conn: (failures.count_failed(conn, "b1"), backfills.progress(conn, "b1"))),
        ("a", lambda conn: planning.history(conn, 1, START, START + 9 * DAY)),
        ("a", lambda conn: arming.last_runtimes(conn, 1, 5)),
        ("a", lambda conn: backfills.move(conn, "b1", BackfillState.CANCELLING, "running", {"cancel_cause": "user"})),
        ("a", lambda conn: (backfills.still_active(conn, ["b1", "b2"]), backfills.active(conn, 0))),
        ("a", commit),
    )
    both.same_tables(t.backfill, t.backfill_interval, t.run, t.task_run)


def test_what_is_left_of_a_lease(both: Both) -> None:
    """Of the live attempt and its publication, also after it seems to have ended. A cancel leaves
    nothing of an attempt that may still begin.
    """
    said = both.play(
        *BASE,
        ("a", lambda conn: lease_left(conn, 1)),
        ("a", lambda conn: start(conn, 1, 1)),
        ("a", lambda conn: renew(conn, 1, 120)),
        ("b", lambda conn: lease_left(conn, 1)),
        ("a", commit),
        ("b", lambda conn: lease_left(conn, 1)),
        ("b", lambda conn: (lease_left(conn, 1, attempt=2), lease_left(conn, 1, publication=1), lease_left(conn, 9))),
        ("a", lambda conn: (renew(conn, 1, -120), lease_left(conn, 1))),
        ("a", lambda conn: (renew(conn, 1, 120), runs.mark_cancel_requested(conn, "b1"), lease_left(conn, 1))),
        ("a", lambda conn: runs.move(conn, RunState.RUNNING, [{"id": 1, "attempt": 1}], {"host": "h"})),
        ("a", lambda conn: runs.move(conn, RunState.PUBLISHING, [{"id": 1, "attempt": 1}], {"outputs": {"a": ["x"]}})),
        ("a", lambda conn: lease_left(conn, 1)),
        ("a", lambda conn: (end(conn, 1), lease_left(conn, 1))),
        ("a", commit),
    )
    assert said[len(BASE) :] == [
        *(None, 1, None),
        *(None, None, 12),
        [None, None, None],
        [None, -12],
        [None, [1], None],
        *(1, 1, 12),
        [1, None],
        None,
    ]


def test_a_failure_that_was_read_before_a_resume_and_committed_after_it_counts(both: Both) -> None:
    """A resume accepts only the failures committed before it. One that failed before the resume but
    committed after it still counts.
    """

    def resume(conn: Any) -> bool:
        values = {"resumed_at": NOW + DAY, "failed_before": failures.count_failed(conn, "b1")}
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
    standing = {"any_unfinished": True, "any_failed": True}
    assert said[8] == [{**standing, "failed_since_resume": False}, ["b1"]]
    assert said[11:13] == [[{**standing, "failed_since_resume": True}, []], ["b1"]]


def test_a_staged_run_is_published_by_another(both: Both) -> None:
    both.play(
        *BASE,
        ("a", lambda conn: (start(conn, 1, 1), start(conn, 2, 2))),
        ("a", lambda conn: runs.accepted(conn, 1, 1)),
        ("a", lambda conn: runs.accepted(conn, 2, 9)),
        ("a", lambda conn: runs.move(conn, RunState.RUNNING, [{"id": 1, "attempt": 1}], {"host": "h"})),
        ("a", lambda conn: runs.move(conn, RunState.PUBLISHING, [{"id": 1, "attempt": 1}], {"outputs": {"a": ["x"]}})),
        ("a", lambda conn: (runs.accepted(conn, 1, 1), runs.orphans(conn, ["b1", "b2"]))),
        ("a", lambda conn: (orphan(conn, (1, 7, 1), (2, 0, 1)), orphan(conn, (1, 0, 1)))),
        ("a", lambda conn: (runs.accepted(conn, 1, 1), runs.orphans(conn, ["b1", "b2"]))),
        ("a", lambda conn: runs.leases(conn, 0)),
        ("a", commit),
        ("a", lambda conn: runs.adopt(conn, [1, 2], "other", NOW + DAY, 9.0)),
        ("b", lambda conn: runs.adopt(conn, [1, 2], "third", NOW + DAY, 9.0)),
        ("a", commit),
        ("b", lambda conn: (runs.orphans(conn, ["b1"]), lease_left(conn, 1), lease_left(conn, 1, publication=1))),
        ("b", lambda conn: runs.to_be_ended(conn, [(1, 1, 0), (1, 1, 1), (1, 2, 1)])),
        ("b", commit),
    )
    both.same_tables(t.run)


def test_deadlines_digests_and_callbacks(both: Both) -> None:
    rule = DeadlineAlert.model_validate(alert("x", "RUN_QUEUED_AT", 1, callback="page", digest_seconds=5))
    late = Arming(NOW - DAY, DeadlineState.ARMED)
    far = Arming(datetime(2999, 1, 1, tzinfo=UTC), DeadlineState.ARMED)
    void = Arming(NOW, DeadlineState.VOID, "why")
    subjects = [arming.Subject(1, late), arming.Subject(2, far), arming.Subject(3, void), arming.Subject(None, late)]
    kind = digests.Kind("p", "x", "t", 5.0)
    call = {"deadline_id": 1, "name": "f", "kind": "function", "options": {}, "kwargs": {"a": None}, "event": {}}
    both.play(
        *BASE,
        ("a", lambda conn: arming.insert_deadlines(conn, "b1", "p", rule, subjects, 1)),
        ("a", lambda conn: arming.insert_deadlines(conn, "b1", "p", rule, subjects, 1)),
        ("a", lambda conn: deadlines.lock_due(conn, 0)),
        ("a", lambda conn: deadlines.lock_due(conn, 0, [1], 1)),
        ("a", lambda conn: deadlines.lock_named(conn, 0, [2, 3])),
        ("a", lambda conn: deadlines.left_armed(conn, 0, deadlines.START, 1)),
        ("a", lambda conn: deadlines.left_armed(conn, 0, deadlines.left_armed(conn, 0, deadlines.START, 1)[1])),
        ("a", lambda conn: deadlines.next_moment(conn, 0, [1])),
        ("a", lambda conn: deadlines.count_waiting(conn)),
        ("a", lambda conn: (deadlines.open_of_runs(conn, [1, 2, 3]), deadlines.open_of_backfill(conn, "b1"))),
        ("a", lambda conn: digests.join(conn, kind, 1, 0)),
        ("a", lambda conn: digests.join(conn, kind, 2, 0)),
        ("a", lambda conn: (digests.lock_due(conn, 0), digests.hold_open(conn, [1, 2]))),
        ("a", lambda conn: deadlines.end(conn, DeadlineState.MISSED, [{"id": 1, "digest_id": 1}], NOW)),
        (
            "a",
            lambda conn: (
                deadlines.late(conn, 0, [1, 2]),
                deadlines.of_digest(conn, 1, 2),
                deadlines.count_of_digest(conn, 1),
            ),
        ),
        ("a", lambda conn: (deadlines.recover(conn, {1: NOW, 2: NOW}), deadlines.recover(conn, {1: NOW}))),
        ("a", lambda conn: digests.close(conn, 1, NOW)),
        (
            "a",
            lambda conn: deadlines.insert_callbacks(
                conn, 0, [{**call, "pipeline": "p"}, {**call, "deadline_id": 2, "pipeline": "q"}]
            ),
        ),
        ("a", lambda conn: [row["deadline_id"] for row in callbacks.due(conn, 0, [], 2)]),
        ("a", lambda conn: [row["deadline_id"] for row in callbacks.due(conn, 0, ["p"], 2)]),
        ("a", lambda conn: (callbacks.next_try(conn, 0, []) is None, callbacks.next_lapse(conn, 0))),
        ("a", lambda conn: callbacks.lock_pending(conn, [2, 1, 9])),
        ("a", lambda conn: callbacks.claim(conn, [{"deadline_id": 1, "token": "t", "attempts": 1}], -5.0)),
        ("a", lambda conn: callbacks.lock_lapsed(conn, 0, ["u"])),
        ("a", lambda conn: callbacks.lock_lapsed(conn, 0, ["t"])),
        (
            "a",
            lambda conn: (
                callbacks.succeed(conn, 1, "u"),
                callbacks.fail(conn, 1, "t", "e", 1),
                callbacks.succeed(conn, 1, "t"),
            ),
        ),
        ("a", lambda conn: (callbacks.replay(conn, 2), callbacks.replay(conn, 1) is None, callbacks.state_of(conn, 1))),
        ("a", lambda conn: (callbacks.switch_off(conn, "u", 1), callbacks.switch_off(conn, "u", 1))),
        ("a", commit),
    )
    both.same_tables(t.deadline, t.deadline_digest, t.callback)


def test_deadlines_of_a_plan(both: Both) -> None:
    steps: list[Step] = []
    for name, fire in (("x", False), ("y", True)):
        rule = DeadlineAlert.model_validate(alert(name, "LOGICAL_DATE", 1.5, fire_if_past=fire))
        due = due_at_planning(rule, START + DAY)
        steps.append(
            (
                "a",
                lambda conn, rule=rule, due=due: arming.insert_planned(
                    conn, "b1", "p", rule, due, 1, arming.reserve_ids(conn, 2), PARTITIONS
                ),
            )
        )
    both.play(*BASE, *steps, ("a", commit))
    both.same_tables(t.deadline)
    assert len(both.memory.play([("a", lambda conn: conn.execute(select(t.deadline.c.id)).all())])[0]) == 4


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
        {"slot": 1},
        {"finished_at": NOW},
        {"interval_end": START},
        {"backfill_id": "unknown"},
        {"position": 0},
        {"interval_start": START, "position": 9},
        {"position": None},
        {"position": 9, "state": "starting", "slot": 0, "pipeline_slot": 1, "lease_until": NOW},
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
    said = both.play(*BASE, ("a", lambda conn: conn.execute(insert(t.run).values({**good, **values})) and None))
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
    both.same_tables(t.run)


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
    both.same_tables(t.run)


# several sessions


def test_a_locked_row_is_skipped(both: Both) -> None:
    both.play(
        *BASE,
        ("a", lambda conn: backfills.lock(conn, "b1", wait=False)),
        ("b", lambda conn: backfills.lock(conn, "b1", wait=False)),
        ("b", lambda conn: backfills.still_active(conn, ["b1", "b2"])),
        ("a", rollback),
        ("b", lambda conn: backfills.lock(conn, "b1", wait=False)),
    )


def test_who_waited_looks_again(both: Both) -> None:
    """A waiting update rechecks its condition after the lock: if the row has left the expected
    state, the update does not land.
    """
    said = both.play(
        *BASE,
        ("a", lambda conn: start(conn, 1, 1)),
        ("b", lambda conn: start(conn, 1, 2)),
        ("a", commit),
        ("b", lambda conn: conn.execute(select(t.run.c.slot).where(t.run.c.id == 1)).scalar()),
        ("b", commit),
    )
    assert said[len(BASE) + 1] == ["waited", 0]
    both.same_tables(t.run)


def test_who_waited_goes_on_after_a_rollback(both: Both) -> None:
    said = both.play(
        *BASE,
        ("a", lambda conn: start(conn, 1, 1)),
        ("b", lambda conn: start(conn, 1, 2)),
        ("a", rollback),
        ("b", commit),
    )
    assert said[len(BASE) + 1] == ["waited", 1]
    both.same_tables(t.run)


@pytest.mark.parametrize("ends", [commit, rollback])
def test_a_unique_key_of_somebody_who_has_not_ended(both: Both, ends: Any) -> None:
    outcome = backfills.Outcome("x", {}, "h")
    said = both.play(
        ("a", lambda conn: backfills.record_outcome(conn, "b1", outcome)),
        ("b", lambda conn: backfills.record_outcome(conn, "b1", outcome)),
        ("a", ends),
        ("b", commit),
    )
    assert said[1] == ["waited", "error 23505" if ends is commit else None]
    both.same_tables(t.backfill_request)


@pytest.mark.parametrize("ends", [commit, rollback])
def test_an_overlap_with_somebody_who_has_not_ended(both: Both, ends: Any) -> None:
    said = both.play(
        put(),
        ("a", commit),
        ("a", lambda conn: make_backfill(conn, "b1")),
        ("b", lambda conn: make_backfill(conn, "b2", first=START + DAY)),
        ("a", ends),
        ("b", commit),
    )
    assert said[3] == ["waited", "error 23P01" if ends is commit else 3]
    both.same_tables(t.backfill)


@pytest.mark.parametrize("ends", [commit, rollback])
def test_a_slot_that_somebody_takes_or_leaves(both: Both, ends: Any) -> None:
    both.play(
        *BASE,
        ("a", lambda conn: start(conn, 1, 1)),
        ("a", commit),
        ("a", lambda conn: end(conn, 1)),
        ("b", lambda conn: start(conn, 2, 1)),
        ("a", ends),
        ("b", commit),
    )
    both.same_tables(t.run)


@pytest.mark.parametrize("ends", [commit, rollback])
def test_do_nothing_and_do_update_wait_as_well(both: Both, ends: Any) -> None:
    def upsert(name: str) -> Step:
        values = {"topic": "t", "partition": 0, "topic_id": name, "next_offset": 1}
        statement = (
            pg_insert(t.SERVICE_TABLES["run_starter"].offset)
            .values(values)
            .on_conflict_do_update(index_elements=["topic", "partition"], set_={"topic_id": name})
        )
        return (name, lambda conn: conn.execute(statement) and None)

    both.play(
        ("a", lambda conn: pipelines.expect_copy(conn, "c", b"x")),
        upsert("a"),
        ("b", lambda conn: pipelines.expect_copy(conn, "c", b"x")),
        ("a", ends),
        upsert("b"),
        ("b", commit),
    )
    both.same_tables(t.pipeline_copy, t.SERVICE_TABLES["run_starter"].offset)


def test_shared_locks(both: Both) -> None:
    both.play(
        *BASE,
        ("a", lock_run(1, read=True)),
        ("b", lock_run(1, read=True)),
        ("c", lock_run(1, key_share=True, skip_locked=True)),
        ("c", lock_run(1, key_share=True)),
        ("a", commit),
        ("b", commit),
        ("c", lock_run(1)),
    )


def test_a_plan_of_the_same_pipeline_waits(both: Both) -> None:
    both.play(
        ("a", lambda conn: planning.lock_pipelines(conn, [2, 1])),
        ("b", lambda conn: planning.lock_pipelines(conn, [3, 2])),
        ("a", commit),
        ("b", commit),
    )


def test_a_statement_sees_what_was_committed_when_it_began(both: Both) -> None:
    count: Callable[[Any], Any] = lambda conn: conn.execute(select(func.count()).select_from(t.run)).scalar()  # noqa: E731
    both.play(
        *BASE,
        ("b", count),
        ("a", lambda conn: make_backfill(conn, "b2", first=START + 9 * DAY)),
        ("b", count),
        ("a", commit),
        ("b", count),
    )


def test_of_a_deadlock_one_is_the_victim(both: Both) -> None:
    """The server may choose either session as victim: one gets an error, the other continues."""
    steps: Sequence[Step] = [
        *BASE,
        ("a", lock_run(1)),
        ("b", lock_run(2)),
        ("a", lock_run(2)),
        ("b", lock_run(1)),
        ("a", rollback),
        ("b", rollback),
    ]
    for store in (both.real, both.memory):
        first, second = store.play(steps)[-4:-2]
        outcomes = sorted(str(each[1]) if each[0] == "waited" else str(each) for each in (first, second))
        assert [outcome.startswith("error 40P01") for outcome in sorted(outcomes, reverse=True)] == [True, False]


# anything


@pytest.mark.parametrize("seed", range(12))
def test_random_scripts(both: Both, seed: int) -> None:
    """Two sessions claim, end, lock and skip the same few rows at random. A session that waits for
    a lock continues once it is free.
    """
    chance = random.Random(seed)
    made: list[Step] = []

    def some(name: str) -> Step:
        id, slot = chance.randint(1, 4), chance.randint(1, 3)
        return (
            name,
            chance.choice(
                [
                    lambda conn: start(conn, id, slot),
                    lambda conn: end(conn, id),
                    lambda conn: runs.lock(conn, [id]).keys(),
                    lambda conn: (claims.taken_slots(conn, [1]), claims.claimants(conn, 0, {1: slot}, ["b1"])),
                    lambda conn: claims.lock_pipelines(conn, [1]),
                    lambda conn: list(backfills.lock_free(conn, ["b1"])),
                    lambda conn: backfills.lock(conn, "b1", wait=False) is None,
                    lambda conn: backfills.run_counts(conn, "b1"),
                    lambda conn: sorted(runs.mark_cancel_requested(conn, "b1")),
                    lambda conn: claims.next_queued(conn, {"b1": slot}),
                    lambda conn: pipelines.put(conn, daily(max_active_runs=slot)),
                    lambda conn: runs.extend_leases(conn, {(id, 1): NOW + slot * DAY}),
                ]
            ),
        )

    # Each transaction of b lies inside one of a. This avoids deadlocks, where the choice of the
    # victim is up to the server.
    for _ in range(6):
        made += [some("a") for _ in range(chance.randint(1, 2))]
        made += [some("b"), ("a", chance.choice([commit, rollback])), ("b", chance.choice([commit, rollback]))]
    both.play(put(), ("a", lambda conn: make_backfill(conn, "b1", days=4)), ("a", commit), *made)
    both.same_tables(t.run, t.backfill, t.pipeline)
