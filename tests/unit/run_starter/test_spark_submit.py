"""Drivers of spark-submit that must exit: because their attempt is over, or is ended."""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from tests.support.threads import LIMIT, fail_once
from tests.unit.driver.pooled import Recorder, launch

from retrofill.spark import clusters
from retrofill_core.attempt_logs import folder_of
from retrofill_core.contract.runs import Report
from retrofill_core.settings import Settings
from run_starter.executors import LaunchRequest, OnDelivery, spark_submit, submission
from run_starter.executors.command import Drivers
from run_starter.executors.logs import AttemptLogs
from run_starter.executors.spark_submit import SparkSubmit

# A driver that reports the end of its attempt, says it is done (``done``) and hangs or exits (``exits``).
DRIVER = """
import json, os, signal, socket, sys
address, _, port = os.environ["RETROFILL_DRIVER_SOCKET"].rpartition(":")
host = socket.create_connection((address, int(port)))
heard = host.makefile("r")
say = lambda kind, what: host.sendall((json.dumps({kind: what}) + "\\n").encode())
def hear(kind):
    while kind not in json.loads(heard.readline()):
        pass
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("token", os.environ["RETROFILL_DRIVER_TOKEN"])
hear("settings")
say("ready", {})
hear("launch")
end = {"type": "AttemptEnded", "sent_at": "2020-01-01T00:00:00Z", "state": "done"}
say("report", {"number": 1, "report": end})
hear("acknowledged")
if "done" in sys.argv:
    say("done", {"reported": True})
if "exits" not in sys.argv:
    while True:
        signal.pause()
"""


class Durable(Recorder):
    """A host whose reports are durable at once."""

    def publish(
        self,
        launch: LaunchRequest,
        report: Report,
        on_delivery: OnDelivery,
        trace: str | None,
        renewed: Callable[[], object],
    ) -> None:
        on_delivery(None)


class World:
    """An executor of such drivers. ``killed``: the tags of applications that it had killed in the cluster."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.host = Durable()
        self.how: tuple[str, ...] = ()
        self.program = DRIVER
        self.environments: queue.SimpleQueue[Mapping[str, str]] = queue.SimpleQueue()
        self.killed: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
        patch.setattr(spark_submit, "EXIT_SECONDS", 0.1)
        patch.setattr(spark_submit, "cluster_for", lambda *_: "a cluster")
        patch.setattr(clusters, "end", lambda _, tags: self.killed.put(tags))
        patch.setattr(submission, "command", self._command)
        self.executor = SparkSubmit(Drivers(Settings(home=folder)), self.host)

    def _command(self, _: object, __: object, environment: Mapping[str, str], *___: object) -> tuple[str, ...]:
        self.environments.put(environment)
        return (sys.executable, "-c", self.program, *self.how)

    def connect(self) -> tuple[socket.socket, IO[str]]:
        """As a driver in the cluster. Returns what it can write to and read from, the settings first."""
        environment = self.environments.get(timeout=20)
        address, _, port = environment["RETROFILL_DRIVER_SOCKET"].rpartition(":")
        connection = socket.create_connection((address, int(port)))
        connection.settimeout(20)
        connection.sendall(json.dumps({"token": environment["RETROFILL_DRIVER_TOKEN"]}).encode() + b"\n")
        return connection, connection.makefile("r")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.executor.close()


@pytest.mark.parametrize("how", [(), ("done",)], ids=["while it stops Spark", "though it is done"])
@pytest.mark.parametrize("remote", [False, True], ids=["here", "in the cluster"])
def test_a_driver_that_hangs_after_its_attempt_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...], remote: bool
) -> None:
    monkeypatch.setattr(submission, "is_remote", lambda *_: remote)
    world.how = how
    world.executor.launch(launch(1))
    assert world.host.ended() == (1, True, "the driver process was ended by signal 9")
    assert world.executor.hosted() == set()
    if remote:
        (tag,) = world.killed.get(timeout=20)
        assert tag.endswith("-1")
    assert world.killed.empty()


def test_a_driver_that_exits_after_its_attempt_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "is_remote", lambda *_: True)
    monkeypatch.setattr(spark_submit, "EXIT_SECONDS", 60.0)
    ended: list[Any] = []
    monkeypatch.setattr(world.executor, "end", ended.append)
    world.how = ("done", "exits")
    world.executor.launch(launch(1))
    assert world.host.ended() == (1, True, "the driver process exited with status 0")
    assert not ended and world.killed.empty()


def test_a_driver_in_the_cluster_that_is_stopped_is_ended_with_its_application(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither reads that it is to end nor closes its connection."""
    monkeypatch.setattr(submission, "is_remote", lambda *_: True)
    world.program = "import time; time.sleep(600)"
    world.executor.launch(launch(1))
    connection, lines = world.connect()
    with connection, lines:
        assert "settings" in json.loads(lines.readline())
        world.executor.end(1)
        assert world.host.ended() == (1, False, "the driver process was ended by signal 9")
    assert len(world.killed.get(timeout=20)) == 1


@pytest.mark.parametrize("thread", ["spark-submit", "submit-watch"])
def test_an_attempt_without_a_thread_ends_and_the_next_one_is_submitted(
    world: World, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    failed = fail_once(monkeypatch, thread)
    world.how = ("done", "exits")
    world.executor.launch(launch(1))
    assert world.host.ended()[:2] == (1, False)
    assert failed.is_set() and world.host.begun[1] is None
    assert world.executor.hosted() == set() and world.executor.waiting() == []
    assert not world.executor.condition().submits
    if thread == "spark-submit":
        assert world.executor.condition().note == f"spark-submit could not be started: {LIMIT}"
    world.executor.launch(launch(2))
    assert world.host.ended()[:2] == (2, True)


def test_a_host_speaks_for_a_lost_driver_in_the_cluster_until_its_application_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        asked.set()
        assert answers.wait(20)

    monkeypatch.setattr(clusters, "end", end)
    monkeypatch.setattr(submission, "is_remote", lambda *_: True)
    world.program = "import time; time.sleep(600)"
    world.executor.launch(launch(1))
    connection, lines = world.connect()
    with connection, lines:
        connection.sendall(b'{"ready": {}}\n')
        assert [next(iter(json.loads(lines.readline()))) for _ in range(2)] == ["settings", "launch"]
        assert world.executor.waiting() == []
        submitted = world.executor._running[1]
        assert submitted is not None
        submitted.process.kill()
    assert asked.wait(20)
    assert [each.key for each in world.executor.waiting()] == [1]
    answers.set()
    assert world.host.ended() == (1, False, "the driver process was ended by signal 9")
    assert world.executor.waiting() == []


def test_a_driver_that_never_connects_names_the_log_that_says_why(tmp_path: Path, world: World) -> None:
    settings = Settings(home=tmp_path)
    logs = AttemptLogs(settings)
    world.executor = SparkSubmit(Drivers(settings), world.host, logs)
    world.program = "import sys; sys.exit('Invalid maximum heap size: -Xmx900000g')"
    try:
        world.executor.launch(launch(7))
        reason = "the driver process exited with status 1 before it connected: 'retrofill runs logs attempt:7' says why"
        assert world.host.ended() == (7, False, reason)
        assert world.executor.condition().note == reason
    finally:
        logs.close()
    (log,) = folder_of(settings).rglob("7*")
    assert "Invalid maximum heap size" in "".join(
        each.read_text() for each in ([log] if log.is_file() else log.iterdir())
    )
