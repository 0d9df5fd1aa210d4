"""Ways in which a pipeline's environment does not start, each beside a pipeline that must go on.

Only the runs of that environment fail, after three tries, and say why.
"""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.installation import until
from tests.support.tiers import some
from tests.unit.driver import pooled
from tests.unit.driver.pooled import Recorder, launch

from retrofill_core.domain.data import PackedEnvironment
from retrofill_core.settings import Settings
from retrofill_core.user_code.environments import Packed
from retrofill_core.user_code.store import CannotUnpackHere, CodeUnavailable
from run_starter.executors import NOT_ALLOWED, LaunchRequest, preparing, processes
from run_starter.executors.command import Drivers, Interpreter, Interpreters
from run_starter.executors.local_pool import LocalPool

BAD = PackedEnvironment(sha256="b" * 64, python="3.11")
PYTHON = f"#!{sys.executable}\n"
READY = PYTHON + 'import json, os, sys\nprint(json.dumps({"ready": True}), flush=True)\n'


class Host(Recorder):
    """Also records what is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: queue.SimpleQueue[tuple[int, str, str]] = queue.SimpleQueue()

    def refused(self, launch: LaunchRequest, reason: str, *, kind: str = NOT_ALLOWED) -> None:
        self.refusals.put((launch.attempt_id, kind, reason))


class Programs(Interpreters):
    """In place of the interpreter of the environment, this program; or what happens instead of unpacking it."""

    def __init__(self, drivers: Drivers, program: Path) -> None:
        super().__init__(drivers)
        self.program = program
        self.instead: Exception | None = None

    def get(self, packed: Packed | None) -> Interpreter:
        if packed is None:
            return super().get(packed)
        if self.instead is not None:
            raise self.instead
        return Interpreter(str(self.program))


class World:
    """A pool of two seats, in which the drivers of the pool's own environment are ready."""

    def __init__(self, folder: Path) -> None:
        self.host = Host()
        self.program = folder / "python"
        driver = folder / "driver.py"
        driver.write_text(pooled.DRIVER)
        drivers = Drivers(Settings(home=folder, driver_slots=2))
        self.programs = Programs(drivers, self.program)
        command = (sys.executable, str(driver))
        self.pool = LocalPool(drivers, self.host, interpreters=self.programs, command=command)
        until(lambda: self.pool.condition().room == 2, "its drivers are ready")
        self.attempts = 0

    def is_program(self, text: str | bytes, mode: int = 0o755) -> None:
        self.program.unlink(missing_ok=True)
        self.program.write_bytes(text.encode() if isinstance(text, str) else text)
        self.program.chmod(mode)

    def launch(self, environment: PackedEnvironment | None = None) -> int:
        self.attempts += 1
        given = launch(self.attempts)
        code = given.pipeline.code.model_copy(update={"environment": environment})
        self.pool.launch(replace(given, pipeline=given.pipeline.model_copy(update={"code": code})))
        return self.attempts

    def run_another(self) -> None:
        """A run of another pipeline, which succeeds. Attempts that were not begun are given again."""
        wanted = self.launch()
        while (ended := self.host.ended())[:2] != (wanted, True):
            assert not ended[1] and self.host.begun[ended[0]] is None
            self.launch(BAD)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(processes, "pause", lambda _: 0.05)
    made = World(tmp_path)
    yield made
    made.pool.close()


def program(text: str) -> Callable[[World], None]:
    return lambda world: world.is_program(PYTHON + text)


def hangs(text: str) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        world.pool._limit = 0.3
        world.is_program(PYTHON + "import signal\n" + text)

    return prepare


def missing(world: World) -> None:
    world.program.unlink(missing_ok=True)


def instead(error: Exception) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        world.programs.instead = error

    return prepare


CLASH = "ImportError: numpy.core.multiarray failed to import"
WAYS: dict[str, tuple[Callable[[World], None], str]] = {
    "an import fails": (program(f"import sys; sys.exit({CLASH!r})"), f"exited with status 1: {CLASH}"),
    "a module is missing": (program("import none_such"), "No module named 'none_such'"),
    "a syntax that this Python does not know": (program("match = = 1"), "SyntaxError"),
    "an import exits": (program("raise SystemExit"), "exited with status 0"),
    "an import exits at once": (program("import os; os._exit(7)"), "exited with status 7"),
    "an import closes its output and exits": (program("import os; os.close(1); os._exit(3)"), "exited with status 3"),
    "an import ends the interpreter": (program("import os; os.kill(os.getpid(), 11)"), "ended by signal 11"),
    "an import aborts the interpreter": (program("import os; os.abort()"), "ended by signal 6"),
    "an import hangs": (hangs("signal.pause()"), "was not ready within 0 seconds"),
    "an import hangs and is deaf": (
        hangs("signal.signal(15, signal.SIG_IGN)\nwhile True: signal.pause()"),
        "was not ready within 0 seconds",
    ),
    "an import prints and exits": (program("print('hello'); print({}); raise SystemExit(5)"), "status 5"),
    "its interpreter is gone": (missing, "No such file or directory"),
    "its interpreter may not be executed": (lambda world: world.is_program(PYTHON, 0o644), "Permission denied"),
    "its interpreter is of another machine": (lambda world: world.is_program(b"\x7fELF\x00"), "Exec format error"),
    "its interpreter's own is gone": (lambda world: world.is_program("#!/none/such\n"), "No such file or directory"),
    "it is damaged": (instead(CodeUnavailable("it has the hash 0, not 1")), "it has the hash 0, not 1"),
    "it is ready, and ends with each attempt": (
        lambda world: world.is_program(READY + "sys.stdin.readline(); sys.stdin.readline(); os._exit(9)"),
        "exited with status 9",
    ),
}


SOME = (
    *("an import fails", "an import exits", "an import closes its output and exits", "an import ends the interpreter"),
    *(
        "an import hangs and is deaf",
        "its interpreter is gone",
        "its interpreter is of another machine",
        "it is damaged",
    ),
    "it is ready, and ends with each attempt",
)


@pytest.mark.parametrize("way", some(WAYS, *SOME))
def test_only_the_runs_of_an_environment_fail_that_does_not_start(world: World, way: str) -> None:
    prepare, why = WAYS[way]
    prepare(world)
    world.launch(BAD)
    for _ in range(3):
        world.run_another()
    until(lambda: world.pool.condition().room == 2, "the other seat has a driver")
    while world.host.refusals.empty():
        world.run_another()
    id, kind, reason = world.host.refusals.get()
    assert (id, kind) == (id, "CodeUnavailable")
    assert why in reason
    assert reason.startswith("no driver starts in the pipeline's environment, after 3 tries: ")
    assert "correct its requirements and apply the pipeline again" in reason
    assert "\n" not in reason
    # The next one is not tried, and has no seat for longer than it takes to say so.
    next_one = world.launch(BAD)
    assert world.host.refusals.get(timeout=20) == (next_one, kind, reason)
    until(lambda: world.pool.hosted() == set(), "the seats are free")
    world.run_another()
    until(lambda: len(world.pool._workers) == 2 and not any(each.packed for each in world.pool._workers), "as before")


def test_one_that_starts_again_is_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.is_program(PYTHON + "raise SystemExit(1)")
    world.launch(BAD)
    world.host.refusals.get(timeout=20)
    later = [preparing.BLAMED_SECONDS]
    clock = time.monotonic
    monkeypatch.setattr(preparing, "time", SimpleNamespace(monotonic=lambda: clock() + later[0]))
    # Of one more that fails, one try is enough.
    world.launch(BAD)
    world.host.refusals.get(timeout=20)
    later[0] += preparing.BLAMED_SECONDS
    world.program.unlink()
    world.program.symlink_to(sys.executable)
    id = world.launch(BAD)
    assert world.host.ended()[:2] == (id, True)


MACHINES = {
    "the kernel ends it": program("import os; os.kill(os.getpid(), 9)"),
    "Spark does not answer": program(
        'print(\'{"lost": {"why": "Spark does not answer", "shared": false}}\', flush=True); raise SystemExit(1)'
    ),
    "no room here": instead(CannotUnpackHere("no space left on device")),
    "no memory here": instead(OSError(12, os.strerror(12))),
}


@pytest.mark.parametrize("way", MACHINES)
def test_what_the_machine_or_spark_is_to_blame_for_fails_no_run(world: World, way: str) -> None:
    MACHINES[way](world)
    id = world.launch(BAD)
    tried = world.pool._unready._failed
    until(lambda: any(each.count > preparing.TRIES for each in tried.values()), "it was tried often")
    world.run_another()
    assert world.host.refusals.empty()
    world.programs.instead = None
    world.program.unlink(missing_ok=True)
    world.program.symlink_to(sys.executable)
    assert world.host.ended()[:2] == (id, True)


def test_nothing_is_blamed_while_the_pools_own_drivers_do_not_start(world: World) -> None:
    world.is_program(PYTHON + "raise SystemExit(1)")
    world.pool._command = (sys.executable, "-c", "raise SystemExit(1)")
    for worker in list(world.pool._workers):
        worker.process.kill()
    tried = world.pool._unready._failed
    until(lambda: None in tried and tried[None].faults >= preparing.TRIES, "the pool's own do not start")
    world.launch(BAD)
    until(lambda: any(packed and each.count > preparing.TRIES for packed, each in tried.items()), "it was tried often")
    assert world.host.refusals.empty()
