"""Runners of callbacks that are killed or stopped in the middle of a call: who calls again, and
what is reported as uncertain.
"""

from __future__ import annotations

import threading

import pytest
from tests.support.callbacks import Callbacks, create_topic, modules, read, receiver
from tests.support.installation import Installation, until
from tests.support.receiver import Answer, Receiver

__all__ = ["modules", "receiver"]


@pytest.mark.long
def test_a_runner_that_dies_in_the_middle(
    installation: Installation, receiver: Receiver, modules: dict[str, str]
) -> None:
    callbacks = Callbacks(installation)
    topic = create_topic(installation, f"users-{installation.settings.topic_prefix}died")
    hold = threading.Event()
    once = callbacks.add("webhook", receiver.answer("/once", Answer(hold=hold)), options={"at_most_once": True})
    again = callbacks.add("webhook", receiver.answer("/died", Answer(hold=hold), Answer(200)), pipeline="q")
    runner = installation.start("callback-runner", modules, RETROFILL_CRASH_POINT="callback:called")
    until(lambda: bool(receiver.got("/once") and receiver.got("/died")), "both are called")
    # The runner is killed at the end of the third call: the message was published, but no result
    # recorded.
    sent = callbacks.add("topic", topic, pipeline="r")
    runner.process.wait(30)
    assert {callbacks.row(id)["state"] for id in (once, again, sent)} == {"running"}
    installation.start("callback-runner", modules)
    row = callbacks.ended(once, "failed")
    assert (row["attempts"], row["runners_lost"]) == (1, 1)
    (event,) = callbacks.events(once)
    assert (event.body["uncertain"], event.body["runners_lost"]) == (True, 1)
    assert len(callbacks.letters(once)) == 1
    for id in (again, sent):
        row = callbacks.ended(id, "succeeded")
        assert (row["attempts"], row["runners_lost"]) == (2, 1)
    assert len(receiver.got("/once")) == 1
    first, second = receiver.got("/died")
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    ids = [headers["ce_id"] for _, _, headers in read(installation, topic, "read_committed")]
    assert ids == [f"{sent}:{topic}"] * 2
    hold.set()


def test_a_runner_that_is_stopped_in_the_middle(
    installation: Installation, receiver: Receiver, modules: dict[str, str]
) -> None:
    callbacks = Callbacks(installation)
    hold = threading.Event()
    answers = (Answer(hold=hold), Answer(200))
    once = callbacks.add("webhook", receiver.answer("/stop-once", *answers), options={"at_most_once": True})
    again = callbacks.add("webhook", receiver.answer("/stop", *answers), pipeline="q")
    runner = installation.start("callback-runner", modules)
    until(lambda: bool(receiver.got("/stop-once") and receiver.got("/stop")), "both are called")
    runner.stop()
    row = callbacks.row(once)
    assert (row["state"], row["last_error"], row["runners_lost"]) == ("failed", "the callback-runner was stopped", 0)
    assert callbacks.row(again)["state"] == "pending"
    installation.start("callback-runner", modules)
    callbacks.ended(again, "succeeded")
    (event,) = callbacks.events(once)
    assert event.body["uncertain"] is True
    assert (len(receiver.got("/stop-once")), len(receiver.got("/stop"))) == (1, 2)
    hold.set()
