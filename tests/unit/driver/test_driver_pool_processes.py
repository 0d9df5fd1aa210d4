"""The driver pool's processes, without Spark: replacing those that end, and tolerating drivers that
do not start.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest
from tests.support.installation import until
from tests.support.threads import LIMIT, fail_once
from tests.unit.driver.pooled import World, launch, pids, world

from retrofill_tools.stack.processes import is_alive
from run_starter.executors import Condition, preparing, processes
from run_starter.executors.local_pool import LocalPool

__all__ = ["world"]


def test_a_driver_is_gone_with_its_process_though_a_child_holds_its_pipe_and_says_why(world: World) -> None:
    pool = world.pool()
    pool.launch(launch(1))
    world.host.ended()
    ((pid,),) = [pids(pool)]
    pool.launch(launch(2, forks="Spark lost the session"))
    assert world.host.ended() == (2, False, "Spark lost the session")
    assert world.host.shared == {1: False, 2: True}
    # Killed processes may take a moment to exit.
    left = [p for p in psutil.process_iter() if _group(p.pid) == pid]
    until(lambda: not any(is_alive(p) for p in left), "the whole group is gone", lambda: str(left))


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


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
    pool.end(7)
    pool.end(1)
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
    monkeypatch.setattr(processes, "end", lambda _: None)
    pool.end(1)
    # It completes anyway, just before the signal would arrive.
    pool._on_done(worker, {"reported": True})
    pool.launch(launch(2))
    assert pool.hosted() == {2}
    assert worker.answers is None
    monkeypatch.undo()
    worker.process.kill()
    assert [world.host.ended()[:2] for _ in range(2)] == [(1, True), (2, True)]


def waits_of(pool: LocalPool, monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[float]:
    """How long the pool waits from now on, which it does not do really."""
    waits: queue.SimpleQueue[float] = queue.SimpleQueue()
    now = [0.0]

    def wait(seconds: float) -> bool:
        waits.put(seconds)
        now[0] += seconds
        return False

    monkeypatch.setattr(pool._woken, "wait", wait)
    monkeypatch.setattr(preparing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return waits


@pytest.mark.parametrize("command", ["/nonesuch/python", sys.executable])
def test_a_driver_that_does_not_start_is_tried_again_ever_more_slowly(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    before = threading.active_count()
    pool = world.pool(
        (command, str(world.file)) if command != sys.executable else (command, "-c", "raise SystemExit(3)")
    )
    # Even after thousands of failures the pause stays finite.
    waits = waits_of(pool, monkeypatch)
    pool._unready._failed[None] = preparing._Failed(5000)
    pool.launch(launch(1))
    assert [waits.get(timeout=20) for _ in range(3)][1:] == [processes.MAX_BACKOFF_SECONDS] * 2
    pool._command = (sys.executable, str(world.file))
    assert world.host.ended()[:2] == (1, True)
    assert threading.active_count() < before + 10


def test_why_drivers_do_not_start_is_known_until_all_do(world: World) -> None:
    say = 'import sys; print(\'{"lost": {"why": "no Spark here", "shared": false}}\', flush=True); sys.exit(1)'
    pool = world.pool((sys.executable, "-c", say), driver_slots=2)
    until(lambda: pool.condition().note is not None, "a driver has said why")
    assert pool.condition() == Condition(0, note="no Spark here")
    assert world.host.changes.get(timeout=20) is None
    pool._command = (sys.executable, str(world.file))
    until(lambda: pool.condition() == Condition(2), "both are ready")


@pytest.mark.parametrize("printed", [True, False])
def test_what_an_interpreter_said_before_it_ended_is_known(world: World, printed: bool) -> None:
    say = 'import sys; sys.exit(\'{"event": "a log"}\')'
    if printed:
        say = "import sys; print('db_password=hunter2 is wrong\\n\\n{}', file=sys.stderr); sys.exit(1)"
    pool = world.pool((sys.executable, "-c", say))
    until(lambda: pool.condition().note is not None, "it ended")
    more = ": db_password=*** is wrong" if printed else ""
    assert pool.condition().note == f"the driver process exited with status 1{more}"


def test_attempts_that_end_before_they_begin_are_started_ever_more_slowly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even though each process gets ready in between."""
    pool = world.pool()
    until(lambda: pool.condition().room == 1, "it is ready")
    waits = waits_of(pool, monkeypatch)
    for id in (1, 2, 3):
        pool.launch(launch(id, leave=id))
        assert world.host.ended()[:2] == (id, False)
    assert [waits.get(timeout=20) for _ in range(3)] == [processes.pause(n) for n in (1, 2, 3)]
    pool.launch(launch(4))
    assert world.host.ended()[:2] == (4, True)
    pool.launch(launch(5, leave=5))
    assert world.host.ended()[:2] == (5, False)
    assert waits.get(timeout=20) == processes.pause(1)


def test_a_stopped_process_holds_nobody_up_and_its_attempt_can_be_ended(world: World) -> None:
    """A launch of many runs does not fit into its pipe."""
    pool = world.pool()
    until(lambda: pool.condition().room == 1, "it is ready")
    (pid,) = pids(pool)
    os.kill(pid, signal.SIGSTOP)
    launching = threading.Thread(target=pool.launch, args=(launch(1, range(1, 2001)),), daemon=True)
    launching.start()
    try:
        launching.join(20)
        assert not launching.is_alive()
        pool.end(1)
        assert world.host.ended() == (1, False, "the driver process was ended by signal 9")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    pool.launch(launch(2))
    assert world.host.ended()[:2] == (2, True)


@pytest.mark.parametrize("thread", ["driver-writer", "driver-reader"])
def test_a_driver_whose_thread_cannot_be_started_is_killed_and_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    failed = fail_once(monkeypatch, thread)
    pool = world.pool()
    assert failed.wait(20)
    until(lambda: pool.condition().note is not None, "the host says why", seconds=20)
    assert pool.condition().note == f"no driver process can be started: {LIMIT}"
    pool.launch(launch(1))
    assert world.host.ended()[:2] == (1, True)
    assert {each.pid for each in psutil.Process().children() if str(world.file) in each.cmdline()} == pids(pool)


@pytest.mark.parametrize("thread", ["_begin", "watch-exit"])
def test_a_driver_that_cannot_be_answered_or_read_is_ended_and_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    failed = fail_once(monkeypatch, thread)
    pool = world.pool()
    pool.launch(launch(1))
    assert failed.wait(20)
    if thread == "_begin":
        assert world.host.ended()[:2] == (1, False)
        assert world.host.begun[1] is None
        pool.launch(launch(2))
    assert world.host.ended()[1]
