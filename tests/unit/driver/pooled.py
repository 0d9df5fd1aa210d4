"""A pool of fake drivers that speak the protocol, and the host that records its calls."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from retrofill.domain.pipeline import PipelineDefinition
from retrofill.settings import Settings
from run_starter.executors import LaunchRequest
from run_starter.executors.local_pool import LocalPool

# A fake driver that speaks the protocol; conf selects its failure.
DRIVER = """
import json, os, pathlib, signal, sys, time
say = lambda told: print(json.dumps(told), flush=True)
hear = lambda: json.loads(sys.stdin.readline() or "{}")
say({"ready": True})
while launch := hear().get("launch"):
    if launch["conf"].get("stuck"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say({"may_begin": True})
    begin = hear()["begin"]
    assert begin is None or begin == 15.0, begin
    if begin and (note := launch["conf"].get("note")):
        pathlib.Path(note).write_text(str(os.getpid()))
    while begin and not pathlib.Path(launch["conf"].get("until", "/")).exists():
        time.sleep(0.01)
    if begin and (forks := launch["conf"].get("forks")):
        if os.fork() == 0:
            signal.pause()
        say({"lost": forks})
        os._exit(1)
    if begin and launch["conf"].get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if begin and launch["conf"].get("stuck"):
        print("this is no JSON", flush=True)
        say({"what": "ever"})
        signal.pause()
    say({"done": {"reported": begin is not None}})
"""
PIPELINE = PipelineDefinition.model_validate(
    {"name": "p", "schedule": "@daily", "tasks": [{"name": "a"}], "code": {"file": "/p.py", "attribute": "p"}}
)


class Recorder:
    """A host that records the pool's calls."""

    def __init__(self) -> None:
        self.allowed = True
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[int, bool, str]] = queue.SimpleQueue()

    def may_begin(self, launch: LaunchRequest) -> float | None:
        self.asked.put(launch.run_id)
        return 15.0 if self.allowed else None

    def may_publish(self, launch: LaunchRequest) -> bool:
        raise AssertionError("nothing is staged here")

    def driver_ended(self, launch: LaunchRequest, *, reported: bool, reason: str, exited: bool = True) -> None:
        self._ended.put((launch.run_id, reported, reason))

    def ended(self) -> tuple[int, bool, str]:
        return self._ended.get(timeout=20)


class World:
    """A pool of the fake drivers above."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "driver.py"
        self.file.write_text(DRIVER)
        self.folder = folder
        self.host = Recorder()
        self.pools: list[LocalPool] = []

    def pool(self, command: tuple[str, ...] | None = None, **more: Any) -> LocalPool:
        settings = Settings(home=self.folder, **{"driver_slots": 1, **more})
        self.pools.append(LocalPool(settings, self.host, command or (sys.executable, str(self.file))))
        return self.pools[-1]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for pool in world.pools:
        pool.close()


def launch(run_id: int, **conf: Any) -> LaunchRequest:
    day = datetime(2013, 1, 1, tzinfo=UTC)
    return LaunchRequest("b", run_id, 1, PIPELINE, day, day.replace(day=2), conf)


def pids(pool: LocalPool) -> set[int]:
    return {worker.process.pid for worker in pool._workers}
