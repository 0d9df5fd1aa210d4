"""Callbacks that failed, on a real Kafka and Postgres with real runners: dead letters, replays, and
the commands for both.
"""

from __future__ import annotations

from typing import Any

from tests.support.callbacks import Callbacks, callbacks, here, modules, receiver, shared
from tests.support.installation import until
from tests.support.receiver import Answer, Receiver
from tests.support.terminal import cli

from retrofill_core.contract.deadlines import CallbackReplayRequested
from retrofill_core.contract.topics import Topic

__all__ = ["callbacks", "cli", "here", "modules", "receiver", "shared"]


def test_a_failure_is_a_dead_letter_whose_replay_calls_again(
    callbacks: Callbacks, receiver: Receiver, here: None, cli: Any
) -> None:
    url = receiver.answer("/broken", Answer(400, body=b"out of paper"))
    id = callbacks.add("webhook", url)
    callbacks.ended(id, "failed")
    (failed,) = callbacks.events(id)
    assert (failed.body["type"], failed.body["attempts"]) == ("CallbackFailed", 2)
    (letter,) = callbacks.letters(id)
    assert letter.headers["retrofill_reason"] == "the webhook answered 400 Bad Request: out of paper"
    assert letter.headers["retrofill_origin_topic"] == Topic.CALLBACK_REQUESTS
    place = f"{letter.partition}:{letter.offset}"
    assert place in [each["place"] for each in cli("dead-letters", "list", "--json").document]
    receiver.answer("/broken", Answer(200))
    replayed = cli("dead-letters", "replay", place)
    assert (replayed.status, replayed.out.endswith("CallbackReplayed\n")) == (0, True), replayed.err
    row = callbacks.ended(id, "succeeded")
    assert row["attempts"] == 1
    assert [event.body["type"] for event in callbacks.events(id)] == [
        "CallbackFailed",
        "CallbackReplayed",
        "CallbackSucceeded",
    ]
    again = cli("dead-letters", "replay", place)
    assert again.status == 1
    assert "succeeded, and is never called again" in again.err
    assert len(receiver.got("/broken")) == 3


def test_a_replay_is_answered_whatever_the_callback_does(callbacks: Callbacks, receiver: Receiver) -> None:
    url = receiver.answer("/later", Answer(503, headers={"Retry-After": "3600"}))
    waits = callbacks.add("webhook", url)
    until(lambda: callbacks.row(waits)["last_error"] is not None, "the first try")
    done = callbacks.add("webhook", receiver.url("/done"))
    callbacks.ended(done, "succeeded")
    answers = {}
    for id in (waits, done, 999_999):
        wish = CallbackReplayRequested(deadline_id=id)
        ce_id = callbacks.installation.publish(Topic.CALLBACK_REQUESTS, str(id), wish)
        answers[id] = callbacks.installation.wait_answer(ce_id, Topic.CALLBACK_EVENTS).body
    assert {answer["type"] for answer in answers.values()} == {"CallbackReplayRejected"}
    assert "it is pending" in answers[waits]["message"]
    assert "it succeeded" in answers[done]["message"]
    assert "there is none" in answers[999_999]["message"]
    assert (len(receiver.got("/later")), len(receiver.got("/done"))) == (1, 1)


def test_a_wish_under_another_key_is_a_dead_letter(callbacks: Callbacks) -> None:
    callbacks.installation.publish(Topic.CALLBACK_REQUESTS, "elsewhere", CallbackReplayRequested(deadline_id=1))
    letter = callbacks.installation.wait_event(
        Topic.DEAD_LETTERS, lambda e: e.key == "elsewhere", "the dead letter of the wish"
    )
    assert "differs from the callback's id" in letter.headers["retrofill_reason"]


def test_commands(callbacks: Callbacks, receiver: Receiver, here: None, cli: Any) -> None:
    url = receiver.answer("/commands", Answer(400))
    ids = [callbacks.add("webhook", url, pipeline="commanded", kwargs={"n": n}) for n in range(2)]
    for id in ids:
        callbacks.ended(id, "failed")
    listed = cli("callbacks", "list", "--pipeline", "commanded", "--state", "failed", "--json").document
    assert [each["deadline_id"] for each in listed] == ids[::-1]
    shown = cli("callbacks", "show", str(ids[1]), "--json").document
    assert (shown["kind"], shown["kwargs"], shown["attempts"]) == ("webhook", {"n": 1}, 2)
    assert shown["event"] == callbacks.row(ids[1])["event"]
    text = cli("callbacks", "show", str(ids[1])).out
    assert "400 Bad Request" in text
    assert '"n": 1' in text
    assert "there is no callback" in cli("callbacks", "show", "999999").err
    receiver.answer("/commands", Answer(200))
    replayed = cli("callbacks", "replay", "--failed", "--pipeline", "commanded", "--json")
    assert [each["type"] for each in replayed.document] == ["CallbackReplayed"] * 2
    for id in ids:
        callbacks.ended(id, "succeeded")
    refused = cli("callbacks", "replay", str(ids[0]))
    assert refused.status == 1
    assert "never called again" in refused.err
    assert cli("callbacks", "replay").status == 2
    assert cli("callbacks", "replay", "1", "--failed").status == 2
    assert cli("callbacks", "replay", "--failed", "--pipeline", "nobodys").out == "no callback has failed\n"
