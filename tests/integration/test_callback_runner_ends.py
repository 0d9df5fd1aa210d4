"""Runners of callbacks that are killed or stopped in the middle of a call: who calls again, and
what is reported as uncertain.
"""

from __future__ import annotations

import threading

from tests.support.callbacks import Callbacks, modules, receiver
from tests.support.installation import Installation, until
from tests.support.receiver import Answer, Receiver

__all__ = ["modules", "receiver"]


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
