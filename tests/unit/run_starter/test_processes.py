"""Drivers that do not listen are killed with all that they started, and their scripts' applications with them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.installation import until
from tests.support.threads import LIMIT

from retrofill.driver.submit import GROUP
from retrofill_tools.stack.processes import is_alive
from run_starter.executors import processes

# Starts a helper in a session of its own, gives it its first line, writes its own pid, and stops itself.
DRIVER = """
import json, os, pathlib, signal, subprocess, sys
command, line, pid = json.loads(sys.argv[1])
helper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
helper.stdin.write(line.encode())
helper.stdin.flush()
pathlib.Path(pid + ".tmp").write_text(str(os.getpid()))
os.rename(pid + ".tmp", pid)
os.kill(os.getpid(), signal.SIGSTOP)
"""
# As the JVM of spark-submit, whose child the driver is.
SUBMIT = "import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN); subprocess.run(sys.argv[1:])"
# As a run-starter, which ends the driver and then exits.
STARTER = """
import pathlib, sys
from run_starter.executors import processes
process = processes.start(sys.argv[1:], pathlib.Path(sys.argv[-1]), {}, pipes=False)
sys.stdin.read()
processes.end(process)
process.wait()
"""
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


class World:
    """A stopped driver with a helper. ``everyone``: their processes, and those above and below them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = folder / "pid"
        self.everyone: list[psutil.Process] = []

    def driver(self, helper: tuple[str, ...], line: str = "", *, submitted: bool = False) -> subprocess.Popen[str]:
        submit = (sys.executable, "-c", SUBMIT) if submitted else ()
        process = processes.start((*submit, *self.command(helper, line)), self._folder, {}, pipes=False)
        # The script of a group is a process more.
        self.await_driver(process.pid, 2 + submitted + (helper[: len(GROUP)] == GROUP))
        return process

    def command(self, helper: tuple[str, ...], line: str = "") -> tuple[str, ...]:
        given = json.dumps([helper, line, str(self._pid)])
        return (sys.executable, "-c", DRIVER, given, str(self._folder))

    def await_driver(self, top: int, count: int) -> None:
        """Wait until the driver is stopped, and all ``count`` processes from ``top`` downwards are there."""
        parent = psutil.Process(top)
        self.everyone = [parent]
        until(self._pid.exists, "it has its helper")
        stopped = psutil.Process(int(self._pid.read_text()))
        until(lambda: stopped.status() == psutil.STATUS_STOPPED, "it is stopped")
        until(lambda: len(parent.children(recursive=True)) == count - 1, "all have started")
        self.everyone += parent.children(recursive=True)

    def is_over(self) -> bool:
        return not any(is_alive(each) for each in self.everyone)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for each in made.everyone:
        if is_alive(each):
            each.kill()


@pytest.mark.parametrize("submitted", [False, True], ids=["a warm driver", "by spark-submit"])
def test_the_application_of_a_driver_that_does_not_listen_is_ended(
    world: World, tmp_path: Path, submitted: bool
) -> None:
    """The helper kills it when it sees its driver go, so it must outlive the driver."""
    ended = tmp_path / "ended"
    afterwards = json.dumps([["touch", str(ended)], ""])
    process = world.driver((*GROUP, *SLEEP), f"{afterwards}\n", submitted=submitted)
    processes.end(process)
    assert process.wait(20) == -9
    until(ended.exists, "what follows the script has run", seconds=20)
    until(world.is_over, "all have exited", seconds=20)


@pytest.mark.parametrize("threads", [True, False], ids=["in a thread", "at once"])
def test_a_parent_is_killed_before_it_sees_its_child_die(
    world: World, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    """As spark-submit, which would exit by itself as soon as its driver is gone, though it was killed."""
    process = world.driver((*GROUP, *SLEEP), "[]\n", submitted=True)
    parent, kill = psutil.Process(process.pid), psutil.Process.kill

    def and_wait(each: psutil.Process) -> None:
        kill(each)
        # Killed itself, or because it saw its child die.
        until(lambda: not is_alive(parent), "the parent has exited", seconds=20)

    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "kill", and_wait)
        if not threads:
            patch.setattr(threading.Thread, "start", _limited)
        processes.end(process)
        assert process.wait(20) == -9
        until(world.is_over, "all have exited", seconds=20)


def test_what_does_not_end_with_its_driver_is_killed_a_moment_later(world: World) -> None:
    process = world.driver(SLEEP)
    processes.end(process)
    assert process.wait(20) == -9
    until(world.is_over, "all have exited", seconds=20)


def test_what_does_not_end_with_its_driver_outlives_no_run_starter(world: World) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER, *world.command(SLEEP)], stdin=subprocess.PIPE) as starter:
        world.await_driver(starter.pid, 3)
        assert starter.stdin is not None
        starter.stdin.close()
        assert starter.wait(20) == 0
    until(world.is_over, "all have exited", seconds=20)


def test_a_driver_that_does_not_listen_is_killed_though_no_thread_can_be_started(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and its script's application is ended."""
    ended = tmp_path / "ended"
    afterwards = json.dumps([["touch", str(ended)], ""])
    process = world.driver((*GROUP, *SLEEP), f"{afterwards}\n")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _limited)
        processes.end(process)
    assert process.wait(20) == -9
    until(ended.exists, "what follows the script has run", seconds=20)
    until(world.is_over, "all have exited", seconds=20)


def _limited(_: threading.Thread) -> None:
    raise RuntimeError(LIMIT)


@pytest.mark.parametrize(
    ("code", "unheard", "said"),
    [
        ("import os; os._exit(75)", True, "no heartbeat was acknowledged in time"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGALRM)", False, "stuck or stopped until its lease ended"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", False, "ended by signal 9"),
        ("raise SystemExit(3)", False, "exited with status 3"),
    ],
)
def test_a_driver_that_nobody_heard_is_told_from_one_that_was_stuck(code: str, unheard: bool, said: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", code], text=True, start_new_session=True)
    assert said in processes.exit_reason(process, None)
    assert processes.was_unheard(process) == unheard
