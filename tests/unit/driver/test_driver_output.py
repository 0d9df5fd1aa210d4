"""A pool's process prints to the log of the attempt that it executes, and so do its children."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.installation import until
from tests.unit.driver.pooled import Recorder, launch

from retrofill_core.attempt_logs import Position, folder_of, read
from retrofill_core.settings import Settings
from run_starter.executors.command import Drivers
from run_starter.executors.local_pool import LocalPool
from run_starter.executors.logs import AttemptLogs

# A driver that speaks the protocol, and prints as user code does.
DRIVER = """
import json, logging, os, subprocess, sys
from retrofill.driver.__main__ import take_pipes
from retrofill.driver.forking import Parent
from retrofill.driver.config import settings
from retrofill.driver.process import Output

from_host, to_host = take_pipes()
output = Output.of_pool()
settings(from_host)
logging.basicConfig(level="INFO")

def attempt(incoming, outgoing, notes, kept):
    say = lambda told: print(json.dumps(told), file=outgoing, flush=True)
    launch = json.loads(incoming.readline())["launch"]
    id, conf = launch["attempt_id"], launch["conf"]
    print("between attempts, before", id, flush=True)
    output.begin(id)
    say({"may_begin": launch["runs"][0]["id"]})
    incoming.readline()
    print("printed by", id, "password=geheim", flush=True)
    logging.info("logged by %s", id)
    if conf.get("stays"):
        subprocess.Popen(["sh", "-c", f"while [ ! -e {conf['stays']} ]; do sleep 0.05; done; echo from a child of {id}"])
    subprocess.run(["echo", f"echoed by {id}"])
    for n in range(conf.get("lines", 0)):
        print("line", n, "x" * 100, flush=True)
        if n == conf["lines"] // 2:
            incoming.readline()
    if conf.get("dies"):
        os.write(1, b"without an end")
        os.kill(os.getpid(), 9)
    say({"done": {"reported": True}})
    notes.over()

Parent(from_host, to_host, lambda incoming, outgoing, notes, kept: notes.ready({}, None), attempt).serve()
"""


class World:
    def __init__(self, home: Path) -> None:
        self.settings = Settings(home=home, driver_slots=1)
        self.logs = AttemptLogs(self.settings)
        self.host = Recorder()
        (home / "driver.py").write_text(DRIVER)
        self.pool = LocalPool(
            Drivers(self.settings), self.host, self.logs, command=(sys.executable, str(home / "driver.py"))
        )

    def run(self, attempt_id: int, **conf: Any) -> bool:
        """Execute an attempt. Returns whether its driver reported the end."""
        self.pool.launch(launch(attempt_id, **conf))
        ended, reported, _ = self.host.ended()
        assert ended == attempt_id
        return reported

    def text(self, attempt_id: int) -> str:
        found = read(folder_of(self.settings), attempt_id, Position())
        return "" if found is None else found[0].decode()

    def shows(self, attempt_id: int, *lines: str) -> None:
        """The log gets exactly these lines."""
        expected = "".join(f"{line}\n" for line in lines)
        until(lambda: self.text(attempt_id) == expected, f"the log of {attempt_id} is complete", seconds=20)

    def writer(self) -> psutil.Process | None:
        return next(filter(is_writer, psutil.Process().children()), None)


def is_writer(process: psutil.Process) -> bool:
    try:
        return "retrofill_core.attempt_logs" in process.cmdline()
    except psutil.NoSuchProcess:
        # It was killed. A process in its last moments is not a zombie for psutil yet.
        return False


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.pool.close()
    made.logs.close()
    assert made.writer() is None


def lines_of(attempt_id: int) -> tuple[str, ...]:
    return f"printed by {attempt_id} password=***", f"INFO:root:logged by {attempt_id}", f"echoed by {attempt_id}"


def test_each_attempt_of_a_process_has_its_own_log(world: World, tmp_path: Path) -> None:
    for id in (1, 2):
        assert world.run(id)
        world.shows(id, *lines_of(id))
    between = (tmp_path / "logs" / "drivers.log").read_text()
    assert "between attempts, before 2" in between
    assert "printed by" not in between


def test_a_child_that_outlives_its_attempt_prints_to_its_log(world: World, tmp_path: Path) -> None:
    assert world.run(1, stays=str(tmp_path / "go"))
    assert world.run(2)
    (tmp_path / "go").touch()
    world.shows(1, *lines_of(1), "from a child of 1")
    world.shows(2, *lines_of(2))


def test_what_a_killed_driver_printed_is_there_to_the_last_byte(world: World) -> None:
    assert not world.run(1, dies=True)
    world.shows(1, *lines_of(1), "without an end")
    assert world.run(2)
    world.shows(2, *lines_of(2))


def test_an_attempt_goes_on_without_its_writer_and_prints_to_the_next_one(world: World) -> None:
    # More than a pipe holds.
    world.pool.launch(launch(1, lines=5000))
    until(lambda: "line 2500" in world.text(1), "half of it is printed", seconds=20)
    killed = world.writer()
    assert killed is not None
    killed.kill()
    killed.wait()
    world.pool._workers[0].send({"go": "on"})
    ended, reported, reason = world.host.ended()
    assert (ended, reported) == (1, True), reason
    until(lambda: "line 4999" in world.text(1), "the other half is there", seconds=20)
    assert [line.split()[1] for line in world.text(1).splitlines() if line.startswith("line ")] == [
        str(n) for n in range(5000)
    ]


def test_a_writer_that_is_killed_is_replaced(world: World) -> None:
    assert world.run(1)
    world.shows(1, *lines_of(1))
    killed = world.writer()
    assert killed is not None
    killed.kill()
    until(lambda: (now := world.writer()) is not None and now.pid != killed.pid, "there is another one", seconds=20)
    assert world.run(2)
    world.shows(2, *lines_of(2))
