"""Callbacks on a real Kafka and Postgres with real runners: each kind, the meaning of failures, and
replays.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic
from psycopg.types.json import Jsonb
from standardwebhooks import Webhook
from tests.support.installation import PARTITIONS, Event, Installation, Servers, until
from tests.support.receiver import Answer, Receiver, receiving
from tests.support.terminal import cli

from retrofill.bus.clients import admin, reader
from retrofill.contract.deadlines import CallbackReplayRequested, CallbackRequested
from retrofill.contract.partitioning import partition_of
from retrofill.contract.topics import Topic

__all__ = ["cli"]

NEW, OLD, OTHER = (f"whsec_{base64.b64encode(letter * 24).decode()}" for letter in (b"n", b"o", b"x"))
FUNCTIONS = """
import json, pathlib, time

def save(path, context, **kwargs):
    pathlib.Path(path).write_text(json.dumps([kwargs, context]))

def fail(text):
    raise RuntimeError(text)

def hang(folder, name):
    (pathlib.Path(folder) / name).touch()
    while not (pathlib.Path(folder) / "go").exists():
        time.sleep(0.05)
"""
SETTINGS = {
    "RETROFILL_CALLBACKS": json.dumps({name: f"their_functions:{name}" for name in ("save", "fail", "hang")}),
    "RETROFILL_CALLBACK_MAX_ATTEMPTS": "2",
    "RETROFILL_CALLBACK_SLOTS": "4",
    "RETROFILL_WEBHOOK_SECRETS": json.dumps({"default": [NEW, OLD], "other": [OTHER]}),
    "RETROFILL_WEBHOOK_ALLOW": json.dumps(["127.0.0.1"]),
    "RETROFILL_WEBHOOK_TIMEOUT_SECONDS": "4",
}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A runner's settings with which it finds the callback functions."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "their_functions.py").write_text(FUNCTIONS)
    return SETTINGS | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def shared(servers: Servers, modules: dict[str, str]) -> Iterator[Installation]:
    """An installation with one runner, for tests that leave it running."""
    made = servers.installation()
    made.start("callback-runner", **modules)
    yield made
    made.close()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """The server that webhooks are sent to."""
    with receiving() as made:
        yield made


class Callbacks:
    """Creates callbacks as a watcher would, and reads their results."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation

    def add(self, kind: str, name: str, *, pipeline: str = "p", **more: Any) -> int:
        """Add a missed deadline with a callback. Returns the deadline's id."""
        with self.installation.session() as conn:
            row = conn.execute(
                "INSERT INTO deadline (shard, alert, pipeline, backfill_id, reference, due_at, state, decided_at,"
                " callback) VALUES (0, 'late', %s, gen_random_uuid()::text, 'BACKFILL_REQUESTED_AT', now(), 'missed',"
                " now(), %s) RETURNING id",
                [pipeline, name],
            ).fetchone()
            assert row is not None
            id = int(row[0])
            shard = partition_of(str(id), PARTITIONS)
            event = {
                "type": "DeadlineMissed",
                "deadline_id": id,
                "alert": "late",
                "pipeline": pipeline,
                "detected_at": "2024-03-01T12:00:00+00:00",
            }
            values = {"options": {}, "kwargs": {}, "event": event, **more}
            conn.execute("UPDATE deadline SET shard = %s WHERE id = %s", [shard, id])
            conn.execute(
                "INSERT INTO callback (deadline_id, shard, name, kind, pipeline, state, options, kwargs, event)"
                " VALUES (%s, %s, %s, %s, %s, 'pending', %s, %s, %s)",
                [id, shard, name, kind, pipeline, *(Jsonb(values[each]) for each in ("options", "kwargs", "event"))],
            )
            conn.commit()
        self.installation.publish(Topic.CALLBACK_REQUESTS, str(id), CallbackRequested(deadline_id=id, callback=name))
        return id

    def row(self, id: int) -> dict[str, Any]:
        """The callback's row."""
        (row,) = self.installation.query("SELECT * FROM callback WHERE deadline_id = %s", id)
        return row

    def ended(self, id: int, state: str) -> dict[str, Any]:
        """Wait until the callback has ended, assert its state, and return the row."""
        until(lambda: self.row(id)["finished_at"] is not None, f"callback {id} ends", lambda: str(self.row(id)))
        row = self.row(id)
        assert row["state"] == state, row
        return row

    def events(self, id: int) -> list[Event]:
        """The callback's events, once the relay has published everything."""
        until(lambda: not self.installation.value("SELECT count(*) FROM callback_runner_outbox"), "the outbox is empty")
        return [e for e in self.installation.events(Topic.CALLBACK_EVENTS) if e.key == str(id)]

    def letters(self, id: int) -> list[Event]:
        """Its dead letters."""
        return [e for e in self.installation.events(Topic.DEAD_LETTERS) if e.key == str(id)]


@pytest.fixture
def callbacks(shared: Installation) -> Callbacks:
    """Callbacks of the shared installation."""
    return Callbacks(shared)


@pytest.fixture
def here(shared: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the CLI at the installation."""
    for variable, value in shared.environment().items():
        monkeypatch.setenv(variable, value)


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


def test_a_try_again_has_the_same_id(callbacks: Callbacks, receiver: Receiver) -> None:
    url = receiver.answer("/again", Answer(500, body=b"we are sorry\0"), Answer(200))
    id = callbacks.add("webhook", url)
    row = callbacks.ended(id, "succeeded")
    assert row["attempts"] == 2
    assert row["last_error"] == "the webhook answered 500 Internal Server Error: we are sorry\ufffd"
    first, second = receiver.got("/again")
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    other = callbacks.add("webhook", url)
    callbacks.ended(other, "succeeded")
    assert receiver.got("/again")[2].headers["webhook-id"] != first.headers["webhook-id"]


def test_the_receiver_says_when_to_try_again(callbacks: Callbacks, receiver: Receiver) -> None:
    url = receiver.answer("/busy", Answer(503, headers={"Retry-After": "90000"}))
    id = callbacks.add("webhook", url)
    until(lambda: callbacks.row(id)["last_error"] is not None, "the first try")
    row = callbacks.row(id)
    assert (row["state"], row["attempts"]) == ("pending", 1)
    left = row["next_try_at"] - datetime.now(UTC)
    assert 3500 < left.total_seconds() <= 3600


def test_a_redirect_is_a_failure(callbacks: Callbacks, receiver: Receiver) -> None:
    url = receiver.answer("/moved", Answer(307, headers={"Location": "/elsewhere"}))
    row = callbacks.ended(callbacks.add("webhook", url), "failed")
    assert "307 Temporary Redirect, a redirect to /elsewhere" in row["last_error"]
    assert row["attempts"] == 2
    assert receiver.got("/elsewhere") == []


@pytest.mark.parametrize("host", ["127.0.0.2", "2130706434", "[::ffff:127.0.0.2]"])
def test_an_address_that_is_not_public_is_not_called(callbacks: Callbacks, receiver: Receiver, host: str) -> None:
    row = callbacks.ended(callbacks.add("webhook", receiver.url("/private", host)), "failed")
    assert "127.0.0.2, which is not public" in row["last_error"]
    assert row["attempts"] == 1
    assert receiver.got("/private") == []


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
    assert cli("callbacks", "replay", str(first)).out == f"deadline {first}: {url} is called again\n"
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


# topics


def read(installation: Installation, topic: str, isolation: str) -> list[tuple[bytes, Any, dict[str, str]]]:
    """All messages of a topic with one partition."""
    consumer: Consumer = reader(installation.settings, "test-topic", **{"isolation.level": isolation})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while (message := consumer.poll(20)) is not None and message.error() is None:
            headers = {name: (raw or b"").decode() for name, raw in message.headers() or ()}
            found.append((message.key(), json.loads(message.value()), headers))
        return found
    finally:
        consumer.close()


def create_topic(installation: Installation, name: str) -> str:
    """Create a user's topic."""
    client = admin(installation.settings, "test")
    (made,) = client.create_topics([NewTopic(name, 1, 1)]).values()
    made.result(20)
    return name


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


# replays


def test_a_failure_is_a_dead_letter_whose_replay_calls_again(
    callbacks: Callbacks, receiver: Receiver, here: None, cli: Any
) -> None:
    url = receiver.answer("/broken", Answer(500, body=b"out of paper"))
    id = callbacks.add("webhook", url)
    callbacks.ended(id, "failed")
    (failed,) = callbacks.events(id)
    assert (failed.body["type"], failed.body["attempts"]) == ("CallbackFailed", 2)
    (letter,) = callbacks.letters(id)
    assert letter.headers["retrofill_reason"] == "the webhook answered 500 Internal Server Error: out of paper"
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
    assert "has no callback" in answers[999_999]["message"]
    assert (len(receiver.got("/later")), len(receiver.got("/done"))) == (1, 1)


def test_a_wish_under_another_key_is_a_dead_letter(callbacks: Callbacks) -> None:
    callbacks.installation.publish(Topic.CALLBACK_REQUESTS, "elsewhere", CallbackReplayRequested(deadline_id=1))
    letter = callbacks.installation.wait_event(
        Topic.DEAD_LETTERS, lambda e: e.key == "elsewhere", "the dead letter of the wish"
    )
    assert "differs from the deadline's id" in letter.headers["retrofill_reason"]


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
    assert "has no callback" in cli("callbacks", "show", "999999").err
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


# runners that are frozen or killed


def test_a_runner_that_dies_in_the_middle(
    installation: Installation, receiver: Receiver, modules: dict[str, str]
) -> None:
    callbacks = Callbacks(installation)
    topic = create_topic(installation, f"users-{installation.settings.topic_prefix}died")
    hold = threading.Event()
    once = callbacks.add("webhook", receiver.answer("/once", Answer(hold=hold)), options={"at_most_once": True})
    again = callbacks.add("webhook", receiver.answer("/died", Answer(hold=hold), Answer(200)), pipeline="q")
    runner = installation.start("callback-runner", **modules, RETROFILL_CRASH_POINT="callback:called")
    until(lambda: receiver.got("/once") and receiver.got("/died"), "both are called")
    # The runner is killed at the end of the third call: the message was published, but no result
    # recorded.
    sent = callbacks.add("topic", topic, pipeline="r")
    runner.process.wait(30)
    assert {callbacks.row(id)["state"] for id in (once, again, sent)} == {"running"}
    installation.start("callback-runner", **modules)
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
    runner = installation.start("callback-runner", **modules)
    until(lambda: receiver.got("/stop-once") and receiver.got("/stop"), "both are called")
    runner.stop()
    row = callbacks.row(once)
    assert (row["state"], row["last_error"], row["runners_lost"]) == ("failed", "the callback-runner was stopped", 0)
    assert callbacks.row(again)["state"] == "pending"
    installation.start("callback-runner", **modules)
    callbacks.ended(again, "succeeded")
    (event,) = callbacks.events(once)
    assert event.body["uncertain"] is True
    assert (len(receiver.got("/stop-once")), len(receiver.got("/stop"))) == (1, 2)
    hold.set()
