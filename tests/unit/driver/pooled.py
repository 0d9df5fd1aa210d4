"""A pool of fake drivers that speak the protocol, and the host that records its calls."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from retrofill.protocol.launch import LaunchedRun
from retrofill.states import AttemptMode
from retrofill_core.contract.runs import Report
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.settings import Settings
from run_starter.executors import NOT_ALLOWED, LaunchRequest, OnDelivery, TimedOut
from run_starter.executors.command import Drivers
from run_starter.executors.local_pool import LocalPool

# A fake driver that speaks the protocol; conf selects its failure.
DRIVER = """
import json, os, pathlib, signal, sys, time
say = lambda told: print(json.dumps(told), flush=True)
heard = {"launch": [], "begin": [], "publish": []}

def hear(kind):
    while not heard[kind]:
        line = sys.stdin.readline() or sys.exit(0)
        for name, value in json.loads(line).items():
            heard.setdefault(name, []).append(value)
    return heard[kind].pop(0)

say({"ready": True})
while True:
    launch = hear("launch")
    conf = launch["conf"]
    if conf.get("stuck"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for run in launch["runs"]:
        if conf.get("leave") == run["id"]:
            os.kill(os.getpid(), signal.SIGKILL)
        say({"may_begin": run["id"]})
        begin = hear("begin")
        assert begin is None or begin == 15.0, begin
        if begin is None:
            break
        if note := conf.get("note"):
            pathlib.Path(note).write_text(str(os.getpid()))
        while not pathlib.Path(conf.get("until", "/")).exists():
            time.sleep(0.01)
        if forks := conf.get("forks"):
            if os.fork() == 0:
                signal.pause()
            say({"lost": {"why": forks, "shared": True}})
            os._exit(1)
        if over := conf.get("over"):
            say({"timed_out": over})
            say({"lost": {"why": "a task timed out", "shared": False}})
            os._exit(1)
        if conf.get("die") in (True, run["id"]):
            os.kill(os.getpid(), signal.SIGKILL)
        if conf.get("stuck"):
            print("this is no JSON", flush=True)
            say({"what": "ever"})
            signal.pause()
        if conf.get("stages"):
            say({"may_publish": [run["id"]]})
    if conf.get("stages"):
        pathlib.Path(conf["stages"]).write_text(json.dumps([hear("publish") for _ in launch["runs"]]))
    say({"done": {"reported": not conf.get("silent")}})
"""
PIPELINE = PipelineDefinition.model_validate(
    {"name": "p", "schedule": "@daily", "tasks": [{"name": "a"}], "code": {"file": "/p.py", "attribute": "p"}}
)


class Recorder:
    """A host that records the pool's calls."""

    def __init__(self) -> None:
        self.allowed: Callable[[int], bool] = lambda _: True
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.accepts = threading.Event()
        self.begun: dict[int, int | None] = {}
        self.shared: dict[int, bool] = {}
        self.changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.over: queue.SimpleQueue[tuple[int, TimedOut]] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[int, bool, str]] = queue.SimpleQueue()

    def may_begin(self, launch: LaunchRequest, run_id: int) -> float | None:
        self.asked.put(run_id)
        return 15.0 if self.allowed(run_id) else None

    def may_publish(self, launch: LaunchRequest, run_ids: Sequence[int]) -> bool:
        """Only odd runs, once that is decided."""
        return self.accepts.wait(20) and all(id % 2 for id in run_ids)

    def publish(
        self,
        launch: LaunchRequest,
        report: Report,
        on_delivery: OnDelivery,
        trace: str | None,
        renewed: Callable[[], object],
    ) -> None:
        raise AssertionError(report)

    def code(self, sha256: str, *, whole: bool) -> dict[str, str]:
        raise AssertionError(sha256)

    def refused(self, launch: LaunchRequest, reason: str, *, kind: str = NOT_ALLOWED) -> None:
        raise AssertionError(reason)

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
        self.begun[launch.attempt_id] = begun
        self.shared[launch.attempt_id] = shared
        self._ended.put((launch.attempt_id, reported, reason))

    def timed_out(self, launch: LaunchRequest, begun: int, over: TimedOut) -> None:
        self.over.put((begun, over))

    def changed(self) -> None:
        self.changes.put(None)

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
        self.pools.append(LocalPool(Drivers(settings), self.host, command=command or (sys.executable, str(self.file))))
        return self.pools[-1]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for pool in world.pools:
        pool.close()


def launch(attempt_id: int, run_ids: Sequence[int] = (), **conf: Any) -> LaunchRequest:
    """An attempt. Without ``run_ids``, its only run has the same id."""
    day = datetime(2013, 1, 1, tzinfo=UTC)
    runs = tuple(LaunchedRun(id, 1, day, day.replace(day=2)) for id in run_ids or [attempt_id])
    return LaunchRequest("b", attempt_id, AttemptMode.EACH, runs, PIPELINE, conf, lease_seconds=60.0)


def pids(pool: LocalPool) -> set[int]:
    return {worker.process.pid for worker in pool._workers}
