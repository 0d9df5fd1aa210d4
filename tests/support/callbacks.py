"""Callbacks as a watcher would create them, runners with functions to call, and what they publish."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from psycopg.types.json import Jsonb

from retrofill_core.bus.clients import admin, reader
from retrofill_core.contract.deadlines import CallbackRequested
from retrofill_core.contract.topics import Topic, partition_of
from tests.support.events import Event, text_headers
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.receiver import Receiver, receiving
from tests.support.servers import Servers
from tests.support.terminal import point_at

NEW, OLD, OTHER = (f"whsec_{base64.b64encode(letter * 24).decode()}" for letter in (b"n", b"o", b"x"))
PAGERDUTY_KEY = "0123456789abcdef" * 2
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
    "RETROFILL_CALLBACK_PATIENCE_SECONDS": "600",
    "RETROFILL_CALLBACK_SLOTS": "4",
    "RETROFILL_WEBHOOK_SECRETS": json.dumps({"default": [NEW, OLD], "other": [OTHER]}),
    "RETROFILL_PAGERDUTY_KEYS": json.dumps({"data": PAGERDUTY_KEY}),
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
    made.start("callback-runner", modules)
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
        self.installation.wait_published(["callback-runner"])
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
    point_at(shared, monkeypatch)


# topics


def read(installation: Installation, topic: str, isolation: str) -> list[tuple[bytes, Any, dict[str, str]]]:
    """All messages of a topic with one partition."""
    consumer: Consumer = reader(installation.settings, "test-topic", **{"isolation.level": isolation})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while (message := consumer.poll(20)) is not None and message.error() is None:
            found.append((message.key() or b"", json.loads(message.value() or b""), text_headers(message)))
        return found
    finally:
        consumer.close()


def create_topic(installation: Installation, name: str) -> str:
    """Create a user's topic."""
    client = admin(installation.settings, "test")
    (made,) = client.create_topics([NewTopic(name, 1, 1)]).values()
    made.result(20)
    return name
