"""Seats that a host makes warm, and the attempts in them."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from psycopg import errors
from sqlalchemy.exc import OperationalError, ProgrammingError
from tests.unit.run_starter.reported import OF, attempt, fold_of, run, steps

from retrofill.states import AttemptMode, AttemptOutcome
from retrofill_core.contract.runs import AttemptEnded
from retrofill_core.domain.run import RunState as R
from retrofill_core.settings import Settings
from retrofill_core.store import attempts
from retrofill_core.store.hosts import Mine
from run_starter.executors import Condition
from run_starter.host import hosting, seats
from run_starter.host.hosting import DriverHost
from run_starter.host.launching import Launching
from run_starter.host.seats import Seats, warmed
from run_starter.reports.leases import UNHEARD
from run_starter.reports.steps import AttemptEnd, AwaitPublisher, Requeue


def row(no: int, attempt_id: int | None = None, *, warm: bool = False) -> Mine:
    return Mine(1, no, warm, attempt_id, None, None, None)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6), st.integers(0, 8))
def test_as_many_free_seats_are_warm_as_processes_are_left_over(
    given_seats: list[tuple[bool, bool]], room: int
) -> None:
    rows = [row(no, no if busy else None, warm=warm) for no, (busy, warm) in enumerate(given_seats)]
    changes = warmed(rows, room)
    busy = [each.no for each in rows if each.attempt_id is not None]
    assert not set(busy) & changes.keys()
    assert all(changes[no] != rows[no].warm for no in changes)
    warm = sum(changes.get(each.no, each.warm) for each in rows if each.no not in busy)
    assert warm == min(len(rows) - len(busy), max(0, room - len(busy)))
    # None is made cold while another is made warm.
    assert len(set(changes.values())) <= 1


def test_a_driver_that_has_reported_its_end_keeps_its_seat_warm() -> None:
    # It is among the two processes, but its attempt has no seat any more.
    assert warmed([row(1, warm=True), row(2, 7)], room=2) == {}


def test_what_was_never_taken_over_began_nothing() -> None:
    runs = [run(R.STARTING, id, number=0, position=id, before=False) for id in (7, 8)]
    made = fold_of(runs, [attempt(began=False)]).release(OF, UNHEARD)
    assert [type(step) for id in (7, 8) for step in made.runs[id]] == [Requeue, Requeue]
    assert not any(step.counted or step.loss for id in (7, 8) for step in made.runs[id])
    assert made.attempts == {OF: AttemptEnd(AttemptOutcome.RELEASED, 1, UNHEARD)}


def test_a_publisher_that_was_never_taken_over_does_not_count() -> None:
    made = fold_of([run(R.PUBLISHING)], [attempt(began=False, mode=AttemptMode.PUBLISH)]).release(OF, UNHEARD)
    (step,) = steps(made)
    assert isinstance(step, AwaitPublisher) and not step.counted


@pytest.mark.parametrize("stays", [False, True])
def test_a_report_says_whether_the_process_stays(stays: bool) -> None:
    report = AttemptEnded(backfill_id="b", attempt_id=OF, state="done", stays=stays)
    assert fold_of().reports([report]).stays == ({OF} if stays else set())


# what a host reports


class Reports(DriverHost):
    """A host that only records its reports."""

    def __init__(self) -> None:
        super().__init__(None, None, "t.", 1)  # type: ignore[arg-type]
        self.states: list[str] = []

    def report(self, report: Any) -> None:
        self.states.append(report.state)
        self.shared = report.shared


LAUNCH: Any = SimpleNamespace(
    backfill_id="b",
    attempt_id=1,
    about={"backfill_id": "b", "attempt_id": 1},
    key=1,
    pipeline=SimpleNamespace(pool="p"),
)


# What an alert counts, by the pool of the server.
LOST = ("retrofill_spark_lost_total", {"pool": "p"})


@pytest.mark.parametrize(
    ("begun", "unheard", "state"),
    [(None, False, "released"), (None, True, "released"), (7, False, "lost"), (7, True, "released")],
)
def test_a_driver_that_could_not_begin_or_was_not_heard_is_no_loss(
    begun: int | None, unheard: bool, state: str
) -> None:
    host = Reports()
    for shared in (True, False):
        before = REGISTRY.get_sample_value(*LOST) or 0.0
        host.driver_ended(LAUNCH, reported=False, reason="gone", begun=begun, unheard=unheard, shared=shared)
        assert (host.states.pop(), host.shared) == (state, shared)
        assert (REGISTRY.get_sample_value(*LOST) or 0.0) - before == shared
    assert host.drivers_changed.is_set()


def test_nothing_begins_while_a_host_stops() -> None:
    host = Reports()
    host.drain()
    assert host.may_begin(LAUNCH, 7) is None
    # What began is still lost while it drains, and released once it gives up.
    host.driver_ended(LAUNCH, reported=False, reason="gone", begun=7)
    host.closing()
    host.driver_ended(LAUNCH, reported=False, reason="gone", begun=7)
    assert host.states == ["lost", "released"]


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("", None, Exception("server closed the connection")),
        OperationalError("", None, errors.LockNotAvailable("")),
        OperationalError("", None, errors.QueryCanceled("")),
        ProgrammingError("", None, errors.InsufficientPrivilege("")),
    ],
    ids=["away", "locked", "slow", "rights"],
)
def test_a_run_waits_until_postgres_answers(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an outage between two runs would end the attempt."""
    answers: list[Any] = [error, error, 12.0]

    def lease_left(*_: object) -> float:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return float(answer)

    monkeypatch.setattr(hosting, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(hosting, "reading", lambda _: nullcontext())
    monkeypatch.setattr(attempts, "lease_left", lease_left)
    launch: Any = SimpleNamespace(**vars(LAUNCH), lease_seconds=60.0)
    assert Reports().may_begin(launch, 7) == 12.0


def test_a_wait_for_drivers_ends_with_the_last_one_or_with_its_time() -> None:
    host, hosted = Reports(), [1]
    host.wait_until(lambda: not hosted, 0.05)
    assert hosted
    hosted.clear()
    host.wait_until(lambda: not hosted, 3600.0)


class Slow:
    """An executor whose drivers do not come."""

    def __init__(self, *launches: Any) -> None:
        self.launches = {launch.key: launch for launch in launches}

    def condition(self) -> Condition:
        return Condition(0)

    def waiting(self) -> list[Any]:
        return list(self.launches.values())

    def end(self, key: int) -> None:
        del self.launches[key]


class Beats(Reports):
    """A host whose reports are heartbeats."""

    def report(self, report: Any) -> None:
        self.states.append(report.type)


def test_a_host_speaks_for_launches_that_wait_for_a_driver_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(seats, "time", SimpleNamespace(monotonic=lambda: now[0]))
    slow, host = Slow(SimpleNamespace(**vars(LAUNCH), lease_seconds=15.0)), Beats()
    launching = Launching(slow, None, 15.0, lambda: None)  # type: ignore[arg-type]
    settings = Settings(driver_start_seconds=10.0)
    mine = Seats(None, "h", settings, host, launching, {"default": slow})  # type: ignore[arg-type, dict-item]
    said = []
    for _ in range(12):
        mine._speak_for_waiting(mine._pools[0])
        said.append((len(host.states), len(slow.launches)))
        now[0] += 1.0
    # A heartbeat every fifth of the lease, until ten seconds have passed.
    assert said == [(0, 1)] * 3 + [(1, 1)] * 3 + [(2, 1)] * 3 + [(3, 1)] * 2 + [(3, 0)]
    assert set(host.states) == {"AttemptHeartbeat"}


class Heard(Reports):
    """A host that remembers that it sent a heartbeat."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def report(self, report: Any) -> None:
        assert report.type == "AttemptHeartbeat"
        self.heard.set()


class Broken(Slow):
    """An executor that cannot say what waits."""

    def waiting(self) -> list[Any]:
        raise RuntimeError("broken")


def test_a_host_speaks_for_waiting_launches_while_postgres_is_away_and_another_pool_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seats, "POLL_SECONDS", 0.05)
    slow, host = Slow(SimpleNamespace(**vars(LAUNCH), lease_seconds=0.1)), Heard()
    launching = Launching(slow, None, 15.0, lambda: None)  # type: ignore[arg-type]
    away: Any = SimpleNamespace(connect=_away, begin=_away)
    pools: Any = {"broken": Broken(), "default": slow}
    settings = Settings.model_validate({"pools": {"broken": {}}})
    mine = Seats(away, "h", settings, host, launching, pools)
    mine.start()
    try:
        assert host.heard.wait(5.0)
    finally:
        mine.leave()


def _away() -> None:
    raise OperationalError("SELECT 1", None, OSError("Postgres is away"))


def test_an_attempt_is_launched_once_until_its_seat_is_free() -> None:
    launching = Launching(None, None, 15.0, lambda: None)  # type: ignore[arg-type]
    assert [launching.first(7), launching.first(7), launching.first(8)] == [True, False, True]
    launching.forget([7])
    assert launching.known == {8}
