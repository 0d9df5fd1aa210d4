"""The parent of a warm driver: a process for each attempt, which hears the host and ends like it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from retrofill.states import PROCESS_ENDED

# Its attempts do what their launch says, and then what each line of the host says.
DRIVER = """
import ctypes, json, os, random, signal, sys, threading, time
from retrofill.driver.__main__ import take_pipes
from retrofill.driver import forking
from retrofill.driver.forking import Parent
from retrofill.driver.config import settings

forking.END_SECONDS = 1.0

def attempt(incoming, outgoing, notes, kept):
    def say(**fields):
        outgoing.write(json.dumps(fields) + "\\n")
        outgoing.flush()

    for line in incoming:
        ((kind, what),) = json.loads(line).items()
        if kind == "launch":
            say(began=os.getpid(), kept=kept, random=random.random(), size=len(what))
        elif kind == "task":
            notes.began(what, 2)
            say(task=what)
        elif kind == "import":
            notes.began(what, 2, everywhere=True)
            say(task=what)
        elif kind == "exit":
            os._exit(what)
        elif kind == "forks":
            if os.fork() == 0:
                notes.ended("a")
                notes.over()
                os._exit(0)
            os.wait()
        elif kind == "leaves":
            notes.leaves()
        elif kind == "leave":
            notes.leave(what)
        elif kind == "kill":
            os.kill(os.getpid(), what)
        elif kind == "half":
            outgoing.write("{")
            outgoing.flush()
            os._exit(0)
        elif kind == "raise":
            sys.stderr = what
            raise ValueError("a bug of ours")
        elif kind == "done":
            notes.ended("a")
            notes.over()
            say(done=True)
            if what == "stays":
                threading.Event().wait()
            if what != "waits":
                os._exit(what)
    say(ended="by the host")
    notes.leave(0)

incoming, outgoing = take_pipes()
settings(incoming)
Parent(incoming, outgoing, lambda *all: all[2].ready({"python": "3"}, {"id": "app"}), attempt).serve()
"""


class Driver:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.say(settings={})
        assert self.hear() == {"ready": {"python": "3"}}

    def say(self, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def rest(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def launch(self, size: int = 1) -> dict[str, Any]:
        self.say(launch=["x"] * size)
        began: dict[str, Any] = self.hear()
        assert (began["kept"], began["size"]) == ({"id": "app"}, size)
        return began

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait()
        made.rest()


def test_each_attempt_has_a_process_of_its_own_with_its_own_random_numbers(driver: Driver) -> None:
    found = []
    # More than a pipe holds, too.
    for size in (1, 100_000, 2):
        found.append(driver.launch(size))
        driver.say(done=0)
        assert driver.hear() == {"done": True}
    assert len({each["began"] for each in found} | {driver.process.pid}) == 4
    assert len({each["random"] for each in found}) == 3


@pytest.mark.parametrize("ends", [0, 3, "stays", "waits"])
def test_what_becomes_of_a_process_whose_attempt_is_over_concerns_nobody(driver: Driver, ends: Any) -> None:
    for _ in range(4):
        driver.launch()
        driver.say(done=ends)
        assert driver.hear() == {"done": True}
    driver.launch()
    driver.hang_up()
    assert driver.rest().count("by the host") == (2 if ends == "waits" else 1)
    assert driver.process.wait(20) == 0


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"exit": 0}, 0),
        ({"exit": 3}, 3),
        ({"leave": 75}, 75),
        ({"leave": 0}, 0),
        ({"raise": "what user code put there"}, 1),
        ({"kill": signal.SIGKILL}, -signal.SIGKILL),
        ({"kill": signal.SIGALRM}, -signal.SIGALRM),
        ({"kill": signal.SIGSEGV}, -signal.SIGSEGV),
        ({"kill": signal.SIGTERM}, -signal.SIGTERM),
    ],
    ids=str,
)
@pytest.mark.parametrize("of_task", [False, True])
def test_the_driver_ends_as_the_process_of_its_attempt(
    driver: Driver, told: dict[str, Any], status: int, of_task: bool
) -> None:
    driver.launch()
    if of_task:
        driver.say(task="a")
        assert driver.hear() == {"task": "a"}
    driver.say(**told)
    assert driver.process.wait(20) == status
    said = [json.loads(line) for line in driver.rest().splitlines() if line]
    if not (of_task and "exit" in told):
        assert said == []
        return
    ((kind, fields),) = said[0].items()
    assert (kind, fields["task"], fields["try_number"], fields["error"]["type"]) == ("timed_out", "a", 2, PROCESS_ENDED)
    assert f"exit status {status}" in fields["error"]["message"]


@pytest.mark.parametrize("what", ["task", "import"])
def test_it_says_whether_every_run_would_end_like_that(driver: Driver, what: str) -> None:
    driver.launch()
    driver.say(**{what: "a"})
    assert driver.hear() == {"task": "a"}
    driver.say(exit=3)
    assert json.loads(driver.rest().splitlines()[-1])["timed_out"]["everywhere"] == (what == "import")


def test_nobody_is_blamed_for_what_one_of_several_tasks_did(driver: Driver) -> None:
    driver.launch()
    for task in ("b", "a"):
        driver.say(task=task)
        driver.hear()
    driver.say(exit=3)
    fields = json.loads(driver.rest().splitlines()[-1])["timed_out"]
    assert fields["task"] == "a" and "one of the tasks ['a', 'b']" in fields["error"]["message"]


def test_a_child_that_a_task_forked_says_nothing_of_the_attempt(driver: Driver) -> None:
    driver.launch()
    driver.say(task="a")
    driver.hear()
    driver.say(forks=True)
    driver.say(exit=3)
    assert driver.process.wait(20) == 3
    assert json.loads(driver.rest().splitlines()[-1])["timed_out"]["task"] == "a"


def test_what_exits_a_process_that_is_being_ended_is_no_error_of_its_task(driver: Driver) -> None:
    driver.launch()
    driver.say(task="a")
    driver.hear()
    driver.say(leaves=True)
    driver.say(exit=3)
    assert driver.process.wait(20) == 3
    assert driver.rest() == ""


def test_an_exit_in_the_middle_of_a_line_is_told_on_a_line_of_its_own(driver: Driver) -> None:
    driver.launch()
    driver.say(task="a")
    driver.hear()
    driver.say(half=True)
    assert driver.process.wait(20) == 0
    assert json.loads(driver.rest().splitlines()[-1])["timed_out"]["task"] == "a"


@pytest.mark.parametrize("told", [{}, {"end": True}])
def test_an_attempt_hears_that_the_host_hangs_up(driver: Driver, told: dict[str, Any]) -> None:
    driver.launch()
    driver.say(**told) if told else driver.hang_up()
    assert driver.hear() == {"ended": "by the host"}
    assert driver.process.wait(20) == 0


def test_an_idle_driver_ends_with_its_host(driver: Driver) -> None:
    driver.hang_up()
    assert driver.process.wait(20) == 0


@pytest.mark.parametrize("busy", [False, True])
def test_sigterm_ends_the_driver_and_its_attempt(driver: Driver, busy: bool) -> None:
    if busy:
        driver.launch()
    driver.process.terminate()
    assert driver.process.wait(20) == (-signal.SIGTERM if busy else 0)


def test_sigterm_lets_an_attempt_that_is_over_release_its_session(driver: Driver) -> None:
    driver.launch()
    driver.say(done="waits")
    assert driver.hear() == {"done": True}
    driver.process.terminate()
    assert driver.hear() == {"ended": "by the host"}
    assert driver.process.wait(20) == 0


@pytest.mark.parametrize("told", ["hangs up", "ends"])
def test_an_attempt_that_does_not_listen_is_killed(driver: Driver, told: str) -> None:
    os.kill(driver.launch()["began"], signal.SIGSTOP)
    driver.hang_up() if told == "hangs up" else driver.process.terminate()
    # Woken by being killed, it may end by the signal that it got before.
    assert driver.process.wait(20) in (-signal.SIGKILL, -signal.SIGTERM)
