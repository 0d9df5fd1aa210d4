"""The simulated store behaves like the real Postgres: deadlines, digests and callbacks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, select
from tests.support.both_stores import BASE, DAY, NOW, START, Both, both, installation
from tests.support.definitions import alert
from tests.support.installation import PARTITIONS
from tests.support.sessions import Step, commit, together

from retrofill_core import deadlines as arming
from retrofill_core.domain.deadline import Arming, DeadlineAlert, DeadlineState, Due, due_at_planning
from retrofill_core.store import callbacks, deadlines, digests, receivers
from retrofill_core.store import tables as t

__all__ = ["both", "installation"]


def after_the_first(conn: Any) -> Any:
    """What is left of the scan behind its first page of one."""
    _, then = deadlines.left_armed(conn, 0, deadlines.START, 1)
    assert then is not None
    return deadlines.left_armed(conn, 0, then)


def arm(rule: DeadlineAlert, due: Due, conn: Any) -> Any:
    """Plan it for two runs."""
    return arming.insert_planned(conn, "b1", "p", rule, due, 1, arming.reserve_ids(conn, 2), PARTITIONS)


def test_deadlines_digests_and_callbacks(both: Both) -> None:
    rule = DeadlineAlert.model_validate(alert("x", "RUN_QUEUED_AT", 1, callback="page", digest_seconds=5))
    late = Arming(NOW - DAY, DeadlineState.ARMED)
    far = Arming(datetime(2999, 1, 1, tzinfo=UTC), DeadlineState.ARMED)
    void = Arming(NOW, DeadlineState.VOID, "why")
    subjects = [arming.Subject(1, late), arming.Subject(2, far), arming.Subject(3, void), arming.Subject(None, late)]
    kind = digests.DigestKind("p", "x", "t", 5.0)
    call = callbacks.NewCallback(1, 0, "f", "function", {}, {"a": None}, {}, "p", NOW)
    both.play(
        *BASE,
        ("a", lambda conn: arming.insert_deadlines(conn, "b1", "p", rule, subjects, 1)),
        ("a", lambda conn: arming.insert_deadlines(conn, "b1", "p", rule, subjects, 1)),
        ("a", lambda conn: deadlines.lock_due(conn, 0)),
        ("a", lambda conn: deadlines.lock_due(conn, 0, [1], 1)),
        ("a", lambda conn: deadlines.lock_named(conn, 0, [2, 3])),
        ("a", lambda conn: deadlines.left_armed(conn, 0, deadlines.START, 1)),
        ("a", after_the_first),
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
        ("a", lambda conn: callbacks.insert_all(conn, [call, replace(call, deadline_id=2, pipeline="q")])),
        ("a", lambda conn: [row.deadline_id for row in callbacks.due(conn, 0, [], 2)]),
        ("a", lambda conn: [row.deadline_id for row in callbacks.due(conn, 0, ["p"], 2)]),
        ("a", lambda conn: [row.deadline_id for row in callbacks.due(conn, 0, [], 2, [1])]),
        ("a", lambda conn: (callbacks.next_try(conn, 0, []) is None, callbacks.next_lapse(conn, 0))),
        ("a", lambda conn: callbacks.next_try(conn, 0, [], [1, 2]) is None),
        ("a", lambda conn: callbacks.lock_pending(conn, [2, 1, 9])),
        ("a", lambda conn: callbacks.claim(conn, [{"deadline_id": 1, "token": "t", "attempts": 1}], -5.0)),
        ("a", lambda conn: callbacks.lock_lapsed(conn, 0, ["u"])),
        ("a", lambda conn: (callbacks.lock_lapsed(conn, 0, [], [1]), callbacks.next_lapse(conn, 0, [1]))),
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
        ("a", together(*[lambda conn: callbacks.switch_off(conn, "u", "x", 1)] * 2)),
        ("a", commit),
    )
    both.same_tables(t.deadline, t.deadline_digest, t.callback)


def test_receivers_that_are_down(both: Both) -> None:
    """One row each; two runners that see a probe due have one probe."""

    def call(id: int, kind: str, name: str, shard: int = 0) -> callbacks.NewCallback:
        return callbacks.NewCallback(id, shard, name, kind, {}, {}, {}, "p", NOW)

    calls = [call(1, "webhook", "u"), call(2, "webhook", "u"), call(3, "topic", "t"), call(4, "function", "t")]
    claim = [{"deadline_id": 1, "token": "t", "attempts": 1}]

    def waiting(conn: Connection) -> list[Any]:
        return [(w.name, w.deadline_id, w.pipeline, w.probing, w.ready) for w in receivers.waiting(conn, 0)]

    def expired(conn: Connection, patience: float) -> list[Any]:
        return [(due.deadline_id, outage.last_error) for due, outage in receivers.expired(conn, 0, patience, 5)]

    both.play(
        *BASE,
        ("a", lambda conn: callbacks.insert_all(conn, [*calls, call(5, "webhook", "u", 1)])),
        ("a", lambda conn: (waiting(conn), receivers.tries_of(conn, "u"), receivers.came_up(conn, "u"))),
        *[
            ("a", partial(receivers.went_down, name=name, error="503", after_seconds=0.0))
            for name in ("u", "u", "t", "x")
        ],
        ("a", lambda conn: [each.deadline_id for each in callbacks.due(conn, 0, [], 9, [], ["u", "t"])]),
        ("a", lambda conn: (waiting(conn), receivers.tries_of(conn, "u"), receivers.lock_to_probe(conn, ["t", "u"]))),
        ("a", commit),
        ("a", lambda conn: receivers.lock_to_probe(conn, ["u"])),
        ("b", lambda conn: receivers.lock_to_probe(conn, ["t", "u"])),
        ("a", lambda conn: callbacks.claim(conn, claim, 9.0)),
        ("a", lambda conn: receivers.probe(conn, {"u": 1})),
        ("a", commit),
        ("b", commit),
        ("b", lambda conn: (waiting(conn), receivers.lock_to_probe(conn, ["u"]), receivers.tries_of(conn, "u"))),
        ("b", lambda conn: callbacks.try_again(conn, 1, "t", "503", 60.0, 0)),
        ("b", lambda conn: receivers.still_down(conn, "u", "504", 30.0, 2)),
        ("b", lambda conn: (waiting(conn), receivers.tries_of(conn, "u"))),
        ("b", lambda conn: (expired(conn, 3600.0), expired(conn, -60.0))),
        ("b", lambda conn: (receivers.came_up(conn, "u"), receivers.came_up(conn, "u"), waiting(conn))),
        ("b", lambda conn: sorted(each.deadline_id for each in callbacks.due(conn, 0, [], 9))),
        ("b", commit),
    )


def test_deadlines_of_a_plan(both: Both) -> None:
    steps: list[Step] = []
    for name, fire in (("x", False), ("y", True)):
        rule = DeadlineAlert.model_validate(alert(name, "LOGICAL_DATE", 1.5, fire_if_past=fire))
        due = due_at_planning(rule, START + DAY)
        steps.append(("a", partial(arm, rule, due)))
    both.play(*BASE, *steps, ("a", commit))
    both.same_tables(t.deadline)
    assert len(both.memory.play([("a", lambda conn: conn.execute(select(t.deadline.c.id)).all())])[0]) == 4
