"""The driver pool, without Spark: assigning runs, also to drivers that are about to be free,
replacing processes, and tolerating drivers that do not start.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.installation import until

from retrofill.domain.pipeline import PipelineDefinition
from retrofill.settings import Settings
from run_starter.executors import Key, LaunchRequest, local_pool
from run_starter.executors.build import Dispatch
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


def test_a_driver_is_gone_with_its_process_though_a_child_holds_its_pipe_and_says_why(world: World) -> None:
    pool = world.pool()
    pool.launch(launch(1))
    world.host.ended()
    ((pid,),) = [pids(pool)]
    pool.launch(launch(2, forks="Spark lost the session"))
    assert world.host.ended() == (2, False, "Spark lost the session")
    # Killed processes may take a moment to exit.
    left = [p for p in psutil.process_iter() if _group(p.pid) == pid]
    until(lambda: not any(_lives(p) for p in left), "the whole group is gone", lambda: str(left))


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_one_process_runs_one_after_the_other_and_slots_are_counted(world: World) -> None:
    pool = world.pool()
    assert pool.free() == 1
    pool.launch(launch(1))
    assert (pool.free(), pool.hosted()) == (0, {(1, 1, 0)})
    assert world.host.ended()[:2] == (1, True)
    before = pids(pool)
    pool.launch(launch(2))
    assert world.host.ended()[:2] == (2, True)
    assert pids(pool) == before
    assert (pool.free(), pool.hosted()) == (1, set())


@pytest.mark.parametrize(
    ("settings", "conf", "reported", "replaced"),
    [
        ({}, {}, True, False),
        ({"driver_max_runs": 1}, {}, True, True),
        ({}, {"die": True}, False, True),
        ({}, {"forks": "gone"}, False, True),
    ],
    ids=["done", "done and retired", "killed", "lost"],
)
def test_a_driver_that_reported_its_end_counts_as_free_and_the_next_launch_waits_for_it(
    world: World, settings: dict[str, Any], conf: dict[str, Any], reported: bool, replaced: bool
) -> None:
    pool, go, note = world.pool(**settings), world.folder / "go", world.folder / "pid"
    pool.launch(launch(1, until=str(go), **conf))
    assert world.host.asked.get(timeout=20) == 1
    before = pids(pool)
    assert pool.free() == 0
    pool.ending({(1, 1, 0), (7, 7, 0)})
    assert (pool.free(), pool.hosted()) == (1, {(1, 1, 0)})
    pool.launch(launch(2, note=str(note)))
    assert (pool.free(), pool.hosted()) == (0, {(1, 1, 0), (2, 1, 0)})
    with pytest.raises(queue.Empty):
        world.host.asked.get(timeout=0.3)
    go.touch()
    assert world.host.ended()[:2] == (1, reported)
    assert world.host.ended()[:2] == (2, True)
    assert world.host.asked.get(timeout=20) == 2
    assert (pool.free(), pool.hosted()) == (1, set())
    assert ({int(note.read_text())} == before) == (not replaced)


def test_the_end_of_a_driver_that_is_not_here_frees_nothing(world: World) -> None:
    pool, go = world.pool(driver_slots=2), world.folder / "go"
    pool.ending({(1, 1, 0)})
    assert pool.free() == 2
    pool.launch(launch(1, until=str(go)))
    assert world.host.asked.get(timeout=20) == 1
    assert pool.free() == 1
    # The same run's publication is another driver.
    pool.ending({(1, 1, 1), (2, 1, 0)})
    assert pool.free() == 1
    go.touch()
    assert world.host.ended()[:2] == (1, True)
    assert pool.free() == 2


def test_a_launch_that_waits_for_a_driver_to_be_done_can_be_ended(world: World) -> None:
    pool, go = world.pool(), world.folder / "go"
    pool.launch(launch(1, until=str(go)))
    assert world.host.asked.get(timeout=20) == 1
    pool.ending({(1, 1, 0)})
    pool.launch(launch(2))
    pool.end((2, 1, 0))
    assert world.host.ended() == (2, False, "ended before a driver was given it")
    assert pool.free() == 1
    go.touch()
    assert world.host.ended()[:2] == (1, True)


class Busy:
    """An executor with a number of free drivers."""

    def __init__(self, free: int) -> None:
        self.ended: set[Key] = set()
        self._free = free

    def free(self) -> int:
        return self._free + len(self.ended)

    def ending(self, keys: Collection[Key]) -> None:
        self.ended |= set(keys)


@pytest.mark.parametrize(("pool", "submit", "free"), [(4, 4, 4), (3, 4, 3), (1, 3, 0), (0, 4, 0), (4, 0, 0)])
def test_both_executors_share_the_slots(pool: int, submit: int, free: int) -> None:
    dispatch = object.__new__(Dispatch)
    dispatch._limit = 4
    dispatch._executors = {"pool": Busy(pool), "spark-submit": Busy(submit)}  # type: ignore[dict-item]
    assert dispatch.free() == free
    dispatch.ending({(1, 1, 0)})
    assert [each.ended for each in dispatch._executors.values()] == [{(1, 1, 0)}] * 2  # type: ignore[attr-defined]


def test_who_may_not_begin_did_not_report(world: World) -> None:
    world.host.allowed = False
    world.pool().launch(launch(1))
    assert world.host.ended() == (1, False, "the driver was not allowed to begin")


def test_a_process_is_replaced_after_its_runs(world: World) -> None:
    pool = world.pool(driver_max_runs=2)
    seen = []
    for run_id in range(4):
        pool.launch(launch(run_id))
        seen.append(frozenset(pids(pool)))
        assert world.host.ended()[1]
    assert len(set(seen)) >= 2


def test_a_killed_process_is_told_at_once_and_replaced(world: World) -> None:
    pool = world.pool()
    pool.launch(launch(1, die=True))
    assert world.host.ended() == (1, False, "the driver process was ended by signal 9")
    pool.launch(launch(2))
    assert world.host.ended()[:2] == (2, True)


def test_the_end_of_a_run_kills_what_does_not_listen(world: World) -> None:
    pool = world.pool()
    pool.launch(launch(1, stuck=True))
    assert world.host.asked.get(timeout=20) == 1
    (pid,) = pids(pool)
    pool.end((7, 7, 0))
    pool.end((1, 1, 0))
    assert world.host.ended() == (1, False, "the driver process was ended by signal 9")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    pool.launch(launch(2))
    assert world.host.ended()[:2] == (2, True)


def test_a_process_that_is_being_ended_is_given_nothing_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = world.pool()
    pool.launch(launch(1, stuck=True))
    world.host.asked.get(timeout=20)
    (worker,) = pool._workers
    monkeypatch.setattr(local_pool.processes, "end", lambda _: None)
    pool.end((1, 1, 0))
    # It completes anyway, just before the signal would arrive.
    pool._on_done(worker, {"reported": True})
    pool.launch(launch(2))
    assert worker.launch is None
    monkeypatch.undo()
    worker.process.kill()
    assert [world.host.ended()[:2] for _ in range(2)] == [(1, True), (2, True)]


def test_a_run_that_waits_for_a_process_can_be_ended(world: World) -> None:
    pool = world.pool((sys.executable, "-c", "import time; time.sleep(60)"))
    pool.launch(launch(1))
    pool.end((1, 1, 0))
    assert world.host.ended() == (1, False, "ended before a driver was given it")
    assert pool.free() == 1


def test_a_close_tells_of_every_run(world: World) -> None:
    pool = world.pool(driver_slots=2)
    pool.launch(launch(1, stuck=True))
    pool.launch(launch(2, stuck=True))
    pool.launch(launch(3))
    assert {world.host.asked.get(timeout=20) for _ in range(2)} == {1, 2}
    pool.close()
    assert {world.host.ended()[:2] for _ in range(3)} == {(1, False), (2, False), (3, False)}


@pytest.mark.parametrize("command", ["/nonesuch/python", sys.executable])
def test_a_driver_that_does_not_start_is_tried_again_ever_more_slowly(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    waits: queue.SimpleQueue[float] = queue.SimpleQueue()
    before = threading.active_count()
    pool = world.pool(
        (command, str(world.file)) if command != sys.executable else (command, "-c", "raise SystemExit(3)")
    )
    # Even after thousands of failures the pause stays finite.
    go_on = pool._closed.wait
    monkeypatch.setattr(pool._closed, "wait", lambda seconds=None: waits.put(seconds or 0.0) or go_on(0.01))
    pool._failures = 5000
    pool.launch(launch(1))
    assert [waits.get(timeout=20) for _ in range(3)][1:] == [local_pool.MAX_BACKOFF_SECONDS] * 2
    pool._command = (sys.executable, str(world.file))
    assert world.host.ended()[:2] == (1, True)
    assert threading.active_count() < before + 10
