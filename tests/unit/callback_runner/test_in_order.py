"""A receiver's callbacks about one backfill are called one after the other, and old news is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, select, update
from tests.support.both_stores import BASE, NOW
from tests.support.sessions import MemoryStore, commit

from callback_runner.decide import GiveUp, Impossible, Outcome, Succeed, TryAgain
from callback_runner.handler import CALLBACKS, CallbackHandler, replay
from callback_runner.record import record
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.handler import Received, SetAside
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.deadlines import CallbackReplayRequested
from retrofill_core.contract.topics import CALLBACK_RUNNER, Topic
from retrofill_core.domain.callback import order_key
from retrofill_core.settings import Settings
from retrofill_core.store import callbacks, listed
from retrofill_core.store.callbacks import Claimed, NewCallback
from retrofill_core.store.tables import callback, run

FAR = NOW + timedelta(days=36_500)
HOOK = "https://example.org/hook"
Target = tuple[str, str, Mapping[str, Any]]
FUNCTION: Target = ("function", "page", {})
TOPIC: Target = ("topic", "ops", {})
EVENT: Target = ("webhook", HOOK, {"secret": "default"})
PEOPLE: dict[str, Target] = {
    body: ("webhook", HOOK, {"secret": "default", "body": body} | more)
    for body, more in {"slack": {}, "teams": {}, "pagerduty": {"routing_key": "data"}}.items()
}
PROGRAMS = {"function": FUNCTION, "topic": TOPIC, "event": EVENT}
EVERYONE = PROGRAMS | PEOPLE


def handler(slots: int = 8, per_pipeline: int = 8) -> CallbackHandler:
    """A handler without servers."""
    made = object.__new__(CallbackHandler)
    made._settings = Settings(callback_slots=slots)
    made._max_per_pipeline = per_pipeline
    made._lock = threading.Lock()
    made._calls, made._turns, made._served, made._silent = {}, {}, {}, {}
    made._closed, made._claims = False, 0
    made._set_aside = SetAside("callback_set_aside", "deadline_id")
    made._engine = made._kinds = None  # type: ignore[assignment]
    return made


class Runner:
    """One shard's runner, of which the test makes the calls."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.told: list[tuple[str, str]] = []

    def transaction(self, work: Callable[[Transaction], object]) -> None:
        tx = Transaction(self.conn, CALLBACK_RUNNER, 0, 0, 1_000_000)
        work(tx)
        for event in tx.outgoing:
            if event.topic == Topic.CALLBACK_EVENTS:
                self.told.append(((event.key or b"").decode(), (dict(event.headers)["ce_type"] or b"").decode()))

    def check(self) -> list[int]:
        """Check until nothing changes. Returns the ids of what is being called."""
        for _ in range(3):
            self.transaction(lambda tx: handler().check(tx, [CALLBACKS]))
        return [id for id, state in self.states().items() if state == "running"]

    def states(self) -> dict[int, str]:
        rows = self.conn.execute(select(callback.c.deadline_id, callback.c.state).order_by(callback.c.deadline_id))
        return {row.deadline_id: row.state for row in rows}

    def row(self, id: int) -> Any:
        return self.conn.execute(select(callback).where(callback.c.deadline_id == id)).mappings().one()

    def end(self, id: int, decision: Succeed | GiveUp | TryAgain, outcome: Outcome | None = None) -> None:
        row = self.row(id)
        given = {name: row[name] for name in Claimed.__dataclass_fields__}
        # An outcome that says nothing about the receiver.
        outcome = outcome or Impossible("")
        self.transaction(lambda tx: record(tx, Claimed(**given), decision, outcome))

    def replay(self, id: int, *, force: bool = False) -> str:
        """The type of the reply."""
        request = CallbackReplayRequested(deadline_id=id, force=force)
        received = Received(Record("t", 0, 0, None, None, {}, (), 0), str(id), request, "x")
        self.transaction(lambda tx: replay(tx, received, request))
        return self.told[-1][1]


def insert(conn: Connection, id: int, target: Target, occasion: str | None = "backfill_failed", **more: Any) -> None:
    """A callback: a deadline's without an occasion."""
    kind, name, options = target
    collects = occasion == "run_failed"
    made = NewCallback(
        id,
        0,
        name,
        kind,
        options,
        {},
        {} if collects else {"type": "BackfillEnded"},
        "p",
        FAR if collects else NOW,
        "b1" if occasion else None,
        occasion,
        id if occasion else None,
        collects,
        order_key(kind, name, options, more.pop("about", "b1")),
    )
    callbacks.insert_all(conn, [replace(made, **more)])


def collecting(conn: Connection, id: int, target: Target, runs: Sequence[int] = (1,), retried: int = 0) -> None:
    """A callback of failed runs, ``retried`` of which were retried since."""
    insert(conn, id, target, "run_failed")
    conn.execute(update(run).where(run.c.id.in_(runs)).values(state="failed", finished_at=NOW, started_at=NOW))
    listed.add_runs(conn, [(each, 0, id) for each in runs])
    conn.execute(update(run).where(run.c.id.in_(runs[:retried])).values(superseded_by=99))


def play(test: Callable[[Runner], None]) -> None:
    """The test on a store with one backfill."""
    failures: list[BaseException] = []

    def step(conn: Connection) -> None:
        try:
            test(Runner(conn))
        except BaseException as e:  # noqa: BLE001 - raised again below, out of the store's thread
            failures.append(e)

    MemoryStore().play([*BASE, ("a", step), ("a", commit)])
    for e in failures:
        raise e


@pytest.mark.parametrize("target", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("end", [Succeed(), GiveUp("no"), GiveUp("no", uncertain=True)], ids=str)
def test_programs_get_every_fact_one_after_the_other(target: Target, end: Succeed | GiveUp) -> None:
    def test(runner: Runner) -> None:
        collecting(runner.conn, 7, target)
        assert runner.check() == []
        insert(runner.conn, 8, target)
        # What comes later ends the window.
        assert runner.check() == [7]
        runner.end(7, TryAgain("away", 0.0))
        assert runner.check() == [7]
        runner.end(7, end)
        assert runner.check() == [8]

    play(test)


@pytest.mark.parametrize("target", PEOPLE.values(), ids=PEOPLE)
def test_people_get_the_newest_of_what_was_never_tried(target: Target) -> None:
    def test(runner: Runner) -> None:
        collecting(runner.conn, 7, target)
        insert(runner.conn, 8, target)
        insert(runner.conn, 9, target)
        assert runner.check() == [9]
        assert runner.states() == {7: "dropped", 8: "dropped", 9: "running"}
        assert runner.row(7)["last_error"] == "callback 9 is newer and about the same backfill"
        assert runner.told == [("7", "RunsFailed"), ("7", "CallbackDropped"), ("8", "CallbackDropped")]

    play(test)


@pytest.mark.parametrize("target", PEOPLE.values(), ids=PEOPLE)
@pytest.mark.parametrize("end", [Succeed(), GiveUp("no"), GiveUp("no", uncertain=True), TryAgain("no", 0.0)], ids=str)
def test_people_get_what_follows_a_message_that_was_tried(target: Target, end: Succeed | GiveUp | TryAgain) -> None:
    """A resolve follows its trigger, also one that may have arrived."""

    def test(runner: Runner) -> None:
        insert(runner.conn, 7, target, "backfill_failed")
        assert runner.check() == [7]
        insert(runner.conn, 8, target, "backfill_succeeded")
        assert runner.check() == [7]
        runner.end(7, end)
        if isinstance(end, TryAgain):
            assert runner.check() == [7]
            runner.end(7, Succeed())
        assert runner.check() == [8]
        assert "dropped" not in runner.states().values()

    play(test)


@pytest.mark.parametrize("target", EVERYONE.values(), ids=EVERYONE)
def test_runs_that_were_retried_are_not_told(target: Target) -> None:
    def test(runner: Runner) -> None:
        collecting(runner.conn, 7, target, runs=[1], retried=1)
        collecting(runner.conn, 8, target, runs=[2, 3], retried=1)
        runner.conn.execute(update(callback).values(next_try_at=NOW))
        assert runner.check() == [8]
        assert runner.states() == {7: "dropped", 8: "running"}
        event = runner.row(8)["event"]
        assert (event["count"], [each["run_id"] for each in event["failed"]]) == (1, [3])

    play(test)


def test_failed_runs_do_not_end_the_window_of_others() -> None:
    """The same receiver may be in the list twice."""

    def test(runner: Runner) -> None:
        collecting(runner.conn, 7, FUNCTION, runs=[1])
        told = {"collects": False, "event": {"type": "RunsFailed"}, "next_try_at": NOW}
        insert(runner.conn, 8, FUNCTION, "run_failed", **told)
        assert runner.check() == [8]
        insert(runner.conn, 9, FUNCTION)
        assert runner.check() == [8]
        runner.end(8, Succeed())
        assert runner.check() == [7]

    play(test)


def test_the_order_is_that_of_facts_and_not_of_ids() -> None:
    def test(runner: Runner) -> None:
        insert(runner.conn, 8, FUNCTION)
        insert(runner.conn, 3, FUNCTION, None)  # a deadline's id is as old as its backfill
        assert runner.check() == [8]
        runner.end(8, Succeed())
        assert runner.check() == [3]

    play(test)


@pytest.mark.parametrize(
    "other",
    [
        {"target": ("webhook", HOOK + "2", {})},
        {"target": ("webhook", HOOK, {"routing_key": "other"})},
        {"target": ("topic", HOOK, {})},
        {"about": "b2"},
        {"order_key": None},
    ],
    ids=str,
)
def test_nobody_waits_for_other_receivers_or_other_backfills(other: dict[str, Any]) -> None:
    def test(runner: Runner) -> None:
        insert(runner.conn, 7, EVENT)
        insert(runner.conn, 8, **{"target": EVENT, **other})
        assert runner.check() == [7, 8]

    play(test)


def test_an_old_one_is_replayed_after_a_newer_delivery_by_force_only() -> None:
    def test(runner: Runner) -> None:
        insert(runner.conn, 7, EVENT)
        insert(runner.conn, 8, EVENT)
        assert runner.check() == [7]
        runner.end(7, GiveUp("no"))
        assert runner.check() == [8]
        runner.end(8, Succeed())
        assert runner.replay(7) == "CallbackReplayRejected"
        assert runner.check() == []
        assert runner.replay(7, force=True) == "CallbackReplayed"
        assert runner.check() == [7]

    play(test)


def test_one_is_replayed_before_a_newer_one_that_has_not_arrived() -> None:
    def test(runner: Runner) -> None:
        insert(runner.conn, 7, PEOPLE["slack"])
        assert runner.check() == [7]
        runner.end(7, GiveUp("no"))
        insert(runner.conn, 8, PEOPLE["slack"])
        assert runner.check() == [8]
        assert runner.replay(7) == "CallbackReplayed"
        assert runner.check() == [8]
        runner.end(8, TryAgain("away", 0.0))
        # Somebody asked for it, so nothing newer replaces it.
        assert runner.check() == [7]

    play(test)


@pytest.mark.parametrize("due", [(7, 8), (8,), (8, 7)], ids=str)
def test_of_windows_that_are_over_together_one_is_first_and_an_open_one_holds_up_no_other(due: tuple[int, ...]) -> None:
    def test(runner: Runner) -> None:
        for id, failed in ((7, 1), (8, 2)):
            collecting(runner.conn, id, EVENT, [failed])
        over = update(callback).where(callback.c.deadline_id.in_(due)).values(next_try_at=NOW)
        runner.conn.execute(over)
        first, *others = sorted(due)
        assert runner.check() == [first]
        for id in others:
            runner.end(first, Succeed())
            assert runner.check() == [id]

    play(test)
