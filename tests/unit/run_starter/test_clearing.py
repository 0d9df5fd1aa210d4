"""Attempts wait for the applications of earlier ones, as long as it takes, and the host says why."""

from __future__ import annotations

import queue
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.definitions import daily
from tests.support.threads import LIMIT, fail_once
from tests.unit.driver.pooled import Recorder

from retrofill.protocol.launch import LaunchedRun
from retrofill.spark.clusters import tag_of
from retrofill.states import AttemptMode
from retrofill_core.settings import Settings
from run_starter.executors import LaunchRequest, processes
from run_starter.executors import clearing as kills
from run_starter.executors.clearing import Clearing
from run_starter.executors.command import Drivers

SECONDS = 30.0
# Is refused while ``away`` exists. Lists an application while ``lives`` does, and for each tag the one in its file,
# of which one that is named in ``stays`` or ``refused`` survives its kill.
CLIENT = """#!/bin/sh
cd {folder}
echo "$@" >> asked
[ ! -e away ] || {{ echo 'the cluster is away' >&2; exit 1; }}
case "$*" in
    *-kill*)
        [ ! -e lives ] || mv lives killed
        shift 3
        for id; do
            ! grep -qs "$id" refused || {{ echo "$id is not yours" >&2; exit 1; }}
            grep -qs "$id" stays || grep -ls "$id" retrofill-* | xargs -r rm
        done;;
    *)
        [ ! -e lives ] || echo '  application_17_0001 x'
        for tag in $(echo "$5" | tr , ' '); do [ ! -e "$tag" ] || cat "$tag"; done;;
esac
"""


class Told(Recorder):
    """Also checks that no attempt began or has a driver that may still run."""

    def driver_ended(
        self,
        launch: LaunchRequest,
        *,
        reported: bool,
        reason: str,
        exited: bool = True,
        begun: int | None = None,
        unheard: bool = False,
        shared: bool = False,
    ) -> None:
        assert exited and begun is None
        super().driver_ended(launch, reported=reported, reason=reason)


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

    def application(self, number: int, attempt: int) -> str:
        """It is live, with the tag of this attempt. Returns its id."""
        id = f"application_17_{number:04}"
        (self.folder / tag_of("ours", attempt)).write_text(f"  {id} x\n")
        return id

    def launch(self, *attempts: int, earlier: tuple[int, ...] = (1,), conf: str = "1g") -> None:
        day = datetime(2020, 1, 1, tzinfo=UTC)
        run = LaunchedRun(1, 1, day, day)
        pipeline = daily(spark_conf={"spark.executor.memory": conf})
        for id in attempts:
            launch = LaunchRequest("b", id, AttemptMode.EACH, (run,), pipeline, {}, 60.0, earlier=earlier)
            self.clearing.launch(replace(launch, installation="ours"))

    def asked(self) -> Any:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cleared:
    monkeypatch.setattr(processes, "MAX_BACKOFF_SECONDS", 0.2)
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
    assert cleared.host.changes.get(timeout=SECONDS) is None
    why = "earlier applications may still run: yarn cannot be asked: the cluster is away"
    assert cleared.clearing.note == why
    assert {launch.key for launch in cleared.clearing.waiting()} == {3, 4}
    assert cleared.released.empty()
    cleared.clearing.end(4)
    assert cleared.host.ended() == (4, False, why)
    (cleared.folder / "away").unlink()
    assert cleared.released.get(timeout=SECONDS) == 3
    assert cleared.released.empty()


@pytest.mark.parametrize("how", ["stays", "refused"])
def test_an_application_that_does_not_end_holds_up_only_those_that_wait_for_it(how: str, cleared: Cleared) -> None:
    cleared.application(2, 2)
    # Held back until all wait, so that they are asked about together.
    (cleared.folder / "away").touch()
    (cleared.folder / how).write_text(cleared.application(1, 1))
    cleared.launch(11, earlier=(1,))
    for attempt in (2, 3, 4):
        cleared.launch(10 + attempt, earlier=(attempt,))
    assert cleared.host.changes.get(timeout=SECONDS) is None
    (cleared.folder / "away").unlink()
    assert {cleared.released.get(timeout=SECONDS) for _ in range(3)} == {12, 13, 14}
    assert {launch.key for launch in cleared.clearing.waiting()} == {11}
    (cleared.folder / tag_of("ours", 1)).unlink()
    assert cleared.released.get(timeout=SECONDS) == 11


def test_attempts_with_other_settings_do_not_wait_for_an_application_that_does_not_end(cleared: Cleared) -> None:
    (cleared.folder / "stays").write_text(cleared.application(1, 1))
    cleared.launch(3, earlier=(1,))
    cleared.launch(4, earlier=(2,), conf="2g")
    assert cleared.released.get(timeout=SECONDS) == 4
    cleared.clearing.close()


def test_an_application_that_does_not_end_in_time_is_named(cleared: Cleared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "END_SECONDS", 0.0)
    (cleared.folder / "stays").write_text(cleared.application(1, 1))
    cleared.launch(3)
    assert cleared.host.changes.get(timeout=SECONDS) is None
    assert cleared.clearing.note == "earlier applications may still run: application_17_0001 did not end within 0 s"
    cleared.clearing.close()


def test_closing_releases_nothing(cleared: Cleared) -> None:
    (cleared.folder / "away").touch()
    cleared.launch(3)
    assert cleared.host.changes.get(timeout=SECONDS) is None
    cleared.clearing.close()
    assert cleared.host.ended()[:2] == (3, False)
    assert cleared.released.empty()


def test_attempts_that_no_thread_could_be_started_for_are_released_with_the_next_one(
    cleared: Cleared, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, "clearing")
    cleared.launch(3)
    assert cleared.clearing.hosted() == {3}
    assert cleared.clearing.note == f"earlier applications may still run: {LIMIT}"
    cleared.launch(4)
    assert {cleared.released.get(timeout=SECONDS) for _ in range(2)} == {3, 4}


def test_of_several_that_do_not_end_one_is_named_at_a_time_in_turn() -> None:
    named: list[list[str]] = []
    cluster: Any = SimpleNamespace(kill=lambda ids: named.append(list(ids)))
    asked = kills.Kills()
    for ids in (["a", "b"], ["a", "b", "c"], ["a", "b", "c"], ["a", "b", "c"], ["b", "c"]):
        asked.request(cluster, ids)
    assert named == [["a", "b"], ["c"], ["a"], ["b"], ["a"], ["c"]]


def test_one_that_need_not_wait_is_asked_about_at_once(cleared: Cleared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "pause", lambda _: 600.0)
    (cleared.folder / "stays").write_text(cleared.application(1, 1))
    cleared.launch(3, earlier=(1,))
    cleared.launch(4, earlier=(2,))
    assert cleared.released.get(timeout=SECONDS) == 4
    cleared.clearing.close()
