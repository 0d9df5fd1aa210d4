"""A webhook's receiver is a name: its address comes from the settings at each call, and shows nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from sqlalchemy import select
from tests.support.receiver import Answer, Receiver, receiving
from tests.unit.callback_runner.test_in_order import Runner, insert, play

from callback_runner.call import Kinds
from callback_runner.decide import Impossible, Outcome, Returned, after_try
from callback_runner.record import claim_of, record
from retrofill.log import JsonLines
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.topics import CALLBACK_RUNNER
from retrofill_core.settings import Settings
from retrofill_core.store import callbacks
from retrofill_core.store.tables import callback, receiver, webhook_off

KEY = "whsec_aHVudGVyMi1jYW5hcnktaHVudGVyMi1jYW5hcnk="
SECRETS = ("k3Jw9xPq2LmZ7vT4", "B0CD34", "pass word", "pass%20word")
PLACE = "/services/B0CD34/k3Jw9xPq2LmZ7vT4?token=pass%20word"
TEAM = ("webhook", "receiver:team", {"secret": "default"})


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def settings(address: str | None) -> Settings:
    receivers = {} if address is None else {"team": address}
    return Settings.model_validate(
        {"receivers": receivers, "webhook_secrets": {"default": [KEY]}, "webhook_allow": ["127.0.0.1"]}
    )


def called(runner: Runner, id: int, given: Settings, tries: int = 1) -> tuple[Outcome, str]:
    """The outcome of a call, and the text of all events and logs about it."""
    (one,) = callbacks.lock_pending(runner.conn, [id])
    claim = claim_of(one, 0)
    callbacks.claim(runner.conn, [{"deadline_id": id, "token": claim.token, "attempts": claim.attempts}], 10.0)
    begun = Kinds(given, "here", "runner").begin(claim, lambda: math.inf)
    if isinstance(begun, tuple):
        assert begun[0].wait(20)
        outcome = begun[0].finish()
        assert outcome is not None
    else:
        outcome = begun
    tx = Transaction(runner.conn, CALLBACK_RUNNER, 0, 0, 1_000_000)
    record(tx, claim, after_try(outcome, claim.attempts, tries), outcome)
    for each in tx.after_commit:
        each()
    return outcome, str(tx.outgoing)


def rows(runner: Runner) -> str:
    return str([runner.conn.execute(select(table)).mappings().all() for table in (callback, receiver, webhook_off)])


def test_the_address_is_that_of_the_settings_now(server: Receiver) -> None:
    old, new = server.answer("/old", Answer(503)), server.url("/new")

    def test(runner: Runner) -> None:
        insert(runner.conn, 7, TEAM)
        assert called(runner, 7, settings(None))[0] == Impossible(
            "there is no address of the receiver 'team' (RETROFILL_RECEIVERS); names there: none"
        )
        assert runner.states() == {7: "failed"}
        assert runner.replay(7) == "CallbackReplayed"
        called(runner, 7, settings(old), tries=2)
        assert runner.states() == {7: "pending"}
        assert called(runner, 7, settings(new))[0] == Returned()
        assert runner.states() == {7: "succeeded"}

    play(test)
    assert [request.path for request in server.requests] == ["/old", "/new"]


def test_an_address_that_is_switched_off_does_not_switch_off_another(server: Receiver) -> None:
    old, other, new = server.answer("/old", Answer(410)), server.answer("/other", Answer(410)), server.url("/new")

    def test(runner: Runner) -> None:
        for id, address, paths in ((7, old, 1), (8, old, 1), (9, other, 2), (10, other, 2), (11, new, 3), (12, new, 4)):
            insert(runner.conn, id, TEAM, about=f"b{id}")
            outcome, _ = called(runner, id, settings(address))
            assert len(server.requests) == paths
            if id in (8, 10):
                assert isinstance(outcome, Impossible)
                assert outcome.error.startswith("receiver:team has been switched off since ")
        assert not runner.conn.execute(select(webhook_off)).all()

    play(test)


ECHO = Answer(404, body=f"cannot POST {PLACE}, of B0CD34 k3Jw9xPq2LmZ7vT4 pass word".encode())
ANSWERS = {
    "refused": ECHO,
    "down": Answer(503, body=ECHO.body),
    "gone": Answer(410, body=ECHO.body),
    "redirected": Answer(302, headers={"Location": f"http://elsewhere.example{PLACE}"}),
    "moved": Answer(301, headers={"Location": PLACE}),
    "accepted": Answer(200, body=ECHO.body),
}


@pytest.mark.parametrize("tries", [1, 2])
@pytest.mark.parametrize("answer", [*ANSWERS.values(), None], ids=[*ANSWERS, "unreachable"])
def test_no_part_of_an_address_shows(
    server: Receiver, answer: Answer | None, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    caplog.handler.setFormatter(JsonLines())
    address = f"http://nobody.invalid{PLACE}" if answer is None else server.answer(PLACE, answer)

    def test(runner: Runner) -> None:
        insert(runner.conn, 7, TEAM)
        outcome, events = called(runner, 7, settings(address), tries)
        shown = {"events": events, "rows": rows(runner), "logs": caplog.text, "outcome": str(outcome)}
        assert "receiver:team" in shown["rows"]
        assert "receiver:team" in shown["logs"]
        assert [(place, each) for place, text in shown.items() for each in SECRETS if each in text] == []
        # An address that is no secret is in the row, for the call, but in no event either.
        insert(runner.conn, 8, ("webhook", address, {"secret": "default"}), about="b8")
        _, events = called(runner, 8, settings(None), tries)
        assert [each for each in SECRETS if each in events + caplog.text] == []

    play(test)
