"""Callbacks on a real Kafka and Postgres with real runners: each kind, and the meaning of failures."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook
from tests.support.callbacks import (
    NEW,
    OLD,
    OTHER,
    Callbacks,
    callbacks,
    create_topic,
    here,
    modules,
    read,
    receiver,
    shared,
)
from tests.support.installation import until
from tests.support.receiver import Answer, Receiver
from tests.support.terminal import cli

from retrofill_core.bus.clients import admin
from retrofill_core.contract.topics import Topic

__all__ = ["callbacks", "cli", "here", "modules", "receiver", "shared"]


# functions


def test_a_function_gets_its_arguments_and_what_happened(callbacks: Callbacks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    id = callbacks.add("function", "save", kwargs={"path": str(out), "text": "näher"})
    callbacks.ended(id, "succeeded")
    kwargs, context = json.loads(out.read_text())
    assert kwargs == {"text": "näher"}
    call = {"deadline_id": id, "idempotency_key": f"{id}:save", "attempt": 1}
    assert context == callbacks.row(id)["event"] | call
    (event,) = callbacks.events(id)
    assert (event.body["type"], event.body["kind"], event.body["attempts"]) == ("CallbackSucceeded", "function", 1)


def test_a_row_of_an_older_version_is_called_with_what_it_has(callbacks: Callbacks, tmp_path: Path) -> None:
    out = tmp_path / "out"
    id = callbacks.add("function", "save", kwargs={"path": str(out)}, event={}, pipeline="")
    callbacks.ended(id, "succeeded")
    assert json.loads(out.read_text()) == [{}, {"deadline_id": id, "idempotency_key": f"{id}:save", "attempt": 1}]


def test_a_failure_that_is_certain_is_tried_again_even_if_it_may_be_called_once_only(callbacks: Callbacks) -> None:
    id = callbacks.add("function", "fail", kwargs={"text": "no pager"}, options={"at_most_once": True})
    row = callbacks.ended(id, "failed")
    assert row["attempts"] == 2
    assert row["last_error"].endswith("RuntimeError: no pager")
    (event,) = callbacks.events(id)
    assert (event.body["type"], event.body["uncertain"], event.body["runners_lost"]) == ("CallbackFailed", False, 0)


# webhooks


def verified(request: Any, secret: str) -> Any:
    return Webhook(secret).verify(request.body, request.headers)


def test_a_webhook_is_signed_with_all_keys_and_tells_everything(callbacks: Callbacks, receiver: Receiver) -> None:
    id = callbacks.add("webhook", receiver.url("/signed?a=b"), kwargs={"team": "näher"})
    callbacks.ended(id, "succeeded")
    (request,) = receiver.got("/signed?a=b")
    payload = {
        "type": "DeadlineMissed",
        "timestamp": "2024-03-01T12:00:00+00:00",
        "data": callbacks.row(id)["event"] | {"kwargs": {"team": "näher"}},
    }
    assert verified(request, NEW) == verified(request, OLD) == payload
    with pytest.raises(Exception, match="No matching signature"):
        verified(request, OTHER)
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"


def test_a_webhook_names_its_secret_and_is_not_sent_without(callbacks: Callbacks, receiver: Receiver) -> None:
    id = callbacks.add("webhook", receiver.url("/other"), options={"secret": "other"})
    callbacks.ended(id, "succeeded")
    assert verified(receiver.got("/other")[0], OTHER)
    id = callbacks.add("webhook", receiver.url("/unsigned"), options={"secret": "nobodys"})
    row = callbacks.ended(id, "failed")
    assert "no secret 'nobodys'" in row["last_error"]
    assert "default, other" in row["last_error"]
    assert row["attempts"] == 1
    assert receiver.got("/unsigned") == []


def test_gone_switches_an_address_off_until_a_replay_succeeds(
    callbacks: Callbacks, receiver: Receiver, here: None, cli: Any
) -> None:
    url = receiver.answer("/gone", Answer(410))
    first = callbacks.add("webhook", url)
    assert callbacks.ended(first, "failed")["attempts"] == 1
    second = callbacks.add("webhook", url)
    assert "switched off since" in callbacks.ended(second, "failed")["last_error"]
    assert len(receiver.got("/gone")) == 1
    assert cli("callbacks", "show", str(second), "--json").document["switched_off_at"] is not None
    receiver.answer("/gone", Answer(200))
    assert cli("callbacks", "replay", str(first)).out == f"callback {first}: {receiver.url('/***')} is called again\n"
    callbacks.ended(first, "succeeded")
    assert [each.headers["webhook-id"] for each in receiver.got("/gone")] == [
        receiver.got("/gone")[0].headers["webhook-id"]
    ] * 2
    callbacks.ended(callbacks.add("webhook", url), "succeeded")


def test_a_receiver_that_hangs_is_left_alone_after_the_limit(callbacks: Callbacks, receiver: Receiver) -> None:
    hold = threading.Event()
    again = callbacks.add("webhook", receiver.answer("/slow", Answer(hold=hold), Answer(200)))
    once = callbacks.add("webhook", receiver.answer("/slow-once", Answer(hold=hold)), options={"at_most_once": True})
    error = "the call took longer than its limit of 4 s and was cut off"
    row = callbacks.ended(again, "succeeded")
    assert (row["last_error"], row["attempts"]) == (error, 2)
    row = callbacks.ended(once, "failed")
    assert (row["last_error"], row["attempts"]) == (error, 1)
    assert callbacks.events(once)[0].body["uncertain"] is True
    hold.set()


def test_calls_that_hang_delay_only_their_own_pipeline(callbacks: Callbacks, tmp_path: Path) -> None:
    stuck = [
        callbacks.add("function", "hang", pipeline="stuck", kwargs={"folder": str(tmp_path), "name": str(n)})
        for n in range(6)
    ]
    until(lambda: len(list(tmp_path.iterdir())) == 2, "half of the slots are taken")
    others = [
        callbacks.add("function", "save", pipeline=f"quick-{n}", kwargs={"path": str(tmp_path / f"saved-{n}")})
        for n in range(3)
    ]
    for id in others:
        callbacks.ended(id, "succeeded")
    assert len(list(tmp_path.iterdir())) == 2 + 3
    assert [callbacks.row(id)["state"] for id in stuck].count("running") == 2
    (tmp_path / "go").touch()
    for id in stuck:
        assert callbacks.ended(id, "succeeded")["attempts"] == 1


def test_a_message_on_a_topic(callbacks: Callbacks) -> None:
    topic = create_topic(callbacks.installation, f"users-{callbacks.installation.settings.topic_prefix}late")
    id = callbacks.add("topic", topic, kwargs={"team": "näher"})
    callbacks.ended(id, "succeeded")
    for isolation in ("read_committed", "read_uncommitted"):
        ((key, value, headers),) = read(callbacks.installation, topic, isolation)
        assert key == str(id).encode()
        assert value == callbacks.row(id)["event"] | {"kwargs": {"team": "näher"}}
        assert headers == {
            "ce_specversion": "1.0",
            "ce_id": f"{id}:{topic}",
            "ce_type": "DeadlineMissed",
            "ce_source": "callback-runner",
            "ce_time": "2024-03-01T12:00:00+00:00",
            "content-type": "application/json",
        }


def test_topics_that_cannot_be_written(callbacks: Callbacks) -> None:
    settings = callbacks.installation.settings
    missing = f"nobodys-{settings.topic_prefix}topic"
    nowhere = callbacks.add("topic", missing)
    own = callbacks.add("topic", f"{settings.topic_prefix}{Topic.BACKFILL_REQUESTS}")
    assert "one of Retrofill's own topics" in callbacks.ended(own, "failed")["last_error"]
    assert callbacks.row(own)["attempts"] == 1
    row = callbacks.ended(nowhere, "failed")
    assert row["last_error"] == f"Kafka has no topic {missing}: create it, callbacks never do"
    assert row["attempts"] == 2
    assert missing not in admin(settings, "test").list_topics(timeout=20).topics
    assert callbacks.installation.events(Topic.BACKFILL_REQUESTS) == []
