"""A receiver that is down is probed by one callback, and the others wait for its result or for the end of patience."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from tests.unit.callback_runner.test_in_order import EVENT, FUNCTION, TOPIC, Runner, Target, insert, play

from callback_runner.decide import (
    GiveUp,
    Heard,
    Impossible,
    Outcome,
    Raised,
    Returned,
    Succeed,
    TryAgain,
    given_up,
    heard,
)
from callback_runner.record import record
from retrofill_core.settings import Settings
from retrofill_core.store import receivers
from retrofill_core.store.callbacks import Claimed
from retrofill_core.store.receivers import Outage
from retrofill_core.store.sql import database_now
from retrofill_core.store.tables import Moment, callback, receiver

AWAY = Raised("503 Service Unavailable")
RECEIVERS = {"webhook": EVENT, "topic": TOPIC}
PATIENCE = Settings().callback_patience_seconds


def away(runner: Runner, *ids: int, outcome: Raised = AWAY) -> None:
    for id in ids:
        runner.end(id, TryAgain(outcome.error, 0.0), outcome)


def down(runner: Runner) -> dict[str, Any] | None:
    row = runner.conn.execute(select(receiver)).mappings().first()
    return None if row is None else dict(row)


def later(runner: Runner, seconds: float) -> None:
    """Seconds pass, as far as receivers that are down and what waits for them are concerned."""
    by = timedelta(seconds=seconds)
    r, c = receiver.c, callback.c
    runner.conn.execute(update(receiver).values(next_probe_at=r.next_probe_at - by, down_since=r.down_since - by))
    runner.conn.execute(update(callback).values(due_at=c.due_at - by, next_try_at=c.next_try_at - by))


def about(runner: Runner, target: Target, *ids: int) -> None:
    """Callbacks of one receiver about different backfills."""
    for id in ids:
        insert(runner.conn, id, target, about=f"b{id}", next_try_at=database_now(runner.conn))


@pytest.mark.parametrize("target", RECEIVERS.values(), ids=RECEIVERS)
def test_one_callback_probes_a_receiver_that_is_down_and_its_success_releases_all(target: Target) -> None:
    def test(runner: Runner) -> None:
        about(runner, target, 1, 2)
        assert runner.check() == [1, 2]
        about(runner, target, 3, 4, 5)
        away(runner, 1, 2)
        # Those that began before it was known count once.
        assert (down(runner) or {})["tries"] == 1
        assert runner.check() == []
        later(runner, 2.0)
        (probe,) = runner.check()
        assert runner.check() == [probe]
        away(runner, probe)
        assert (down(runner) or {})["tries"] == 2
        assert runner.check() == []
        later(runner, 4.0)
        (second,) = runner.check()
        assert second != probe
        runner.end(second, Succeed(), Returned())
        assert down(runner) is None
        assert runner.check() == [id for id in (1, 2, 3, 4, 5) if id != second]

    play(test)


@pytest.mark.parametrize("target", RECEIVERS.values(), ids=RECEIVERS)
def test_functions_and_other_receivers_wait_for_nobody(target: Target) -> None:
    def test(runner: Runner) -> None:
        about(runner, target, 1)
        assert runner.check() == [1]
        away(runner, 1)
        # A function may have the name of a topic.
        about(runner, FUNCTION, 2)
        about(runner, ("function", target[1], {}), 3)
        about(runner, ("webhook", "https://other.example/hook", {}), 4)
        about(runner, ("topic", "other", {}), 5)
        assert runner.check() == [2, 3, 4, 5]

    play(test)


def test_a_function_that_fails_is_no_receiver_that_is_down() -> None:
    def test(runner: Runner) -> None:
        about(runner, FUNCTION, 1, 2)
        assert runner.check() == [1, 2]
        away(runner, 1)
        assert down(runner) is None

    play(test)


def test_a_callback_that_its_receiver_never_takes_holds_up_the_others_for_one_probe_only() -> None:
    def test(runner: Runner) -> None:
        about(runner, EVENT, 1)
        for id in range(2, 6):
            assert runner.check() == [1]
            runner.end(1, TryAgain("500", 60.0), Raised("500"))
            about(runner, EVENT, id)
            later(runner, 1.5)
            assert runner.check() == [id]
            runner.end(id, Succeed(), Returned())
            # It is not released by successes of others.
            assert runner.check() == []
            later(runner, 60.0)

    play(test)


def test_the_runner_of_a_probe_died() -> None:
    """Its lease is over, and the next probe follows at once."""

    def test(runner: Runner) -> None:
        about(runner, EVENT, 1, 2)
        away(runner, *runner.check())
        later(runner, 2.0)
        (probe,) = runner.check()
        died = Raised("the callback-runner died during the call", at_once=True, uncertain=True)
        away(runner, probe, outcome=died)
        assert (down(runner) or {})["tries"] == 1
        later(runner, 1.0)
        assert len(runner.check()) == 1

    play(test)


@pytest.mark.parametrize("seconds", [30.0, 3600.0])
def test_a_receiver_that_asks_for_time_has_it_for_all_callbacks(seconds: float) -> None:
    def test(runner: Runner) -> None:
        about(runner, EVENT, 1, 2)
        assert runner.check() == [1, 2]
        away(runner, 1)
        away(runner, 2, outcome=Raised("429", after_seconds=seconds))
        about(runner, EVENT, 3)
        later(runner, seconds - 5.0)
        assert runner.check() == []
        later(runner, 6.0)
        assert len(runner.check()) == 1

    play(test)


def test_what_waited_for_longer_than_the_patience_is_given_up_with_the_reason_and_later_ones_wait_on() -> None:
    def test(runner: Runner) -> None:
        about(runner, EVENT, 1, 2)
        away(runner, *runner.check())
        later(runner, PATIENCE - 100.0)
        runner.conn.execute(update(receiver).values(next_probe_at=func.clock_timestamp(type_=Moment)))
        about(runner, EVENT, 3)
        (probe,) = runner.check()
        away(runner, probe)
        assert runner.check() == []
        later(runner, 200.0)
        runner.conn.execute(
            update(receiver).values(next_probe_at=func.clock_timestamp(type_=Moment) + timedelta(minutes=1))
        )
        # They are claimed to be given up: ``Call`` calls nothing.
        assert runner.check() == [1, 2]
        for id in (1, 2):
            runner.end(id, GiveUp("given up"), Impossible("given up"))
        assert runner.check() == []
        assert (down(runner) or {})["tries"] == 2
        assert runner.states() == {1: "failed", 2: "failed", 3: "pending"}

    play(test)


@pytest.mark.parametrize("waited", ["our own outage", "an outage that ended unseen"])
def test_what_nobody_tried_is_not_given_up(waited: str) -> None:
    """The stack was off, or nothing was to be told: what is known of the receiver is old."""

    def test(runner: Runner) -> None:
        about(runner, EVENT, 1, 2)
        away(runner, *runner.check())
        later(runner, 2 * PATIENCE)
        (probe,) = runner.check()
        if waited == "our own outage":
            # It is down again, or still: since when nobody knows, so since now.
            runner.conn.execute(update(receiver).values(next_probe_at=receiver.c.next_probe_at - timedelta(hours=1)))
            away(runner, probe)
            assert runner.check() == []
        else:
            runner.end(probe, Succeed(), Returned())
            assert len(runner.check()) == 1

    play(test)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Returned(), Heard.UP),
        (Raised("404", refused=True), Heard.UP),
        (Impossible("410", gone="5d"), Heard.UP),
        (Raised("503"), Heard.DOWN),
        (Raised("429", after_seconds=5.0), Heard.DOWN),
        (Raised("too long", uncertain=True), Heard.DOWN),
        (Raised("the runner was stopped", at_once=True), Heard.NOTHING),
        (Impossible("there is no secret"), Heard.NOTHING),
    ],
)
def test_what_a_try_says_about_its_receiver(outcome: Outcome, expected: Heard) -> None:
    assert heard(outcome) is expected


def test_a_runner_that_has_lost_its_claim_says_nothing_about_the_receiver() -> None:
    def test(runner: Runner) -> None:
        about(runner, EVENT, 1)
        runner.check()
        row = {name: runner.row(1)[name] for name in Claimed.__dataclass_fields__} | {"token": "other"}
        runner.transaction(lambda tx: record(tx, Claimed(**row), TryAgain("503", 0.0), AWAY))
        assert down(runner) is None
        assert receivers.tries_of(runner.conn, "nobody") is None

    play(test)


def test_what_is_given_up_says_since_when_and_why() -> None:
    outage = Outage(datetime(2026, 1, 1, 9, tzinfo=UTC), "the webhook answered 503")
    assert given_up(outage, 14400.0) == Impossible(
        "given up after 14400 s (RETROFILL_CALLBACK_PATIENCE_SECONDS): its receiver has been down since 2026-01-01 "
        "09:00:00 UTC. Once it is back: retrofill callbacks replay. Last error: the webhook answered 503"
    )
