"""Attempts wait for the applications of earlier ones, as long as it takes, and the host says why."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.definitions import daily

from retrofill.clusters import tag_of
from retrofill.domain.attempt import AttemptMode
from retrofill.settings import Settings
from run_starter.executors import Host, LaunchRequest, RunToDo
from run_starter.executors.clearing import Clearing
from run_starter.executors.command import Drivers

SECONDS = 30.0
# Lists an application while ``lives`` exists, and is refused while ``away`` does.
CLIENT = """#!/bin/sh
echo "$@" >> {folder}/asked
[ ! -e {folder}/away ] || {{ echo 'the cluster is away' >&2; exit 1; }}
case "$*" in
    *-kill*) mv {folder}/lives {folder}/killed;;
    *) [ ! -e {folder}/lives ] || echo '  application_17_0001 x';;
esac
"""


class Told(Host):
    """A host that remembers what it was told."""

    def __init__(self) -> None:
        self.ended: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.noted = threading.Event()

    def driver_ended(
        self, launch: LaunchRequest, *, reported: bool, reason: str, exited: bool = True, begun: int | None = None
    ) -> None:
        assert exited and begun is None and not reported
        self.ended.put((launch.key, reason))

    def changed(self) -> None:
        self.noted.set()


class Cleared:
    """A ``Clearing`` whose cluster is YARN."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.host = folder, Told()
        client = folder / "bin" / "spark-class"
        client.parent.mkdir()
        client.write_text(CLIENT.format(folder=folder))
        client.chmod(0o755)
        self.released: queue.SimpleQueue[int] = queue.SimpleQueue()
        drivers = Drivers(Settings(spark_home=folder, spark_submit_master="yarn"))
        self.clearing = Clearing(drivers, self.host, lambda launch: self.released.put(launch.key))

    def launch(self, *attempts: int, earlier: tuple[int, ...] = (1,)) -> None:
        day = datetime(2020, 1, 1, tzinfo=UTC)
        run = RunToDo(1, 1, day, day)
        for id in attempts:
            launch = LaunchRequest("b", id, AttemptMode.EACH, (run,), daily(), {}, 60.0, earlier=earlier)
            self.clearing.launch(replace(launch, installation="ours"))

    def asked(self) -> Any:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def cleared(tmp_path: Path) -> Cleared:
    return Cleared(tmp_path)


def test_an_attempt_is_released_once_the_application_of_an_earlier_one_was_killed(cleared: Cleared) -> None:
    (cleared.folder / "lives").touch()
    cleared.launch(3, earlier=(1, 2))
    assert cleared.released.get(timeout=SECONDS) == 3
    assert (cleared.folder / "killed").exists()
    assert f"-appTags {tag_of('ours', 1)},{tag_of('ours', 2)} " in cleared.asked()[0]
    assert cleared.clearing.waiting() == []
    assert cleared.clearing.note is None
    cleared.launch(4)
    assert cleared.released.get(timeout=SECONDS) == 4


def test_a_cluster_that_is_away_keeps_attempts_waiting_and_the_host_says_why(cleared: Cleared) -> None:
    (cleared.folder / "away").touch()
    cleared.launch(3, 4)
    assert cleared.host.noted.wait(SECONDS)
    why = "earlier applications may still run: yarn cannot be asked: the cluster is away"
    assert cleared.clearing.note == why
    assert {launch.key for launch in cleared.clearing.waiting()} == {3, 4}
    assert cleared.released.empty()
    cleared.clearing.end(4)
    assert cleared.host.ended.get(timeout=SECONDS) == (4, why)
    (cleared.folder / "away").unlink()
    assert cleared.released.get(timeout=SECONDS) == 3
    assert cleared.released.empty()


def test_closing_releases_nothing(cleared: Cleared) -> None:
    (cleared.folder / "away").touch()
    cleared.launch(3)
    assert cleared.host.noted.wait(SECONDS)
    cleared.clearing.close()
    assert cleared.host.ended.get(timeout=SECONDS)[0] == 3
    assert cleared.released.empty()
