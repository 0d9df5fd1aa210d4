"""Time limits of tasks: what is interrupted, what ends its driver, and the tries that are left."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.driver.pooled import launch
from tests.unit.driver.pooled import world as pool_world
from tests.unit.driver.served import DONE, World, world, world_module
from tests.unit.driver.test_driver_execute import task
from tests.unit.driver.test_driver_submit import Plain, fields_of, gone, wait_until
from tests.unit.driver.test_driver_submit import launch as script_launch

from retrofill.driver import execute
from retrofill.driver.config import Config
from retrofill.driver.execute import Execution, TaskTimedOut, TimeLimit
from retrofill.protocol.facts import ErrorInfo
from retrofill.sdk.names import timed_out, written
from retrofill.states import TASK_TIMED_OUT, TaskState
from run_starter.executors import TimedOut

__all__ = ["pool_world", "world"]
OVER = TaskTimedOut("too long")
LIMIT = {"timeout_seconds": 1.0}
MESSAGE = "task 'a' of run 1 timed out after 1s: raise its timeout, or find out what takes so long"


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "GRACE_SECONDS", 0.2)


def stuck_is_wrong(error: TaskTimedOut) -> None:
    raise AssertionError(f"it ended: {error}")


def test_what_ends_in_time_is_left_alone() -> None:
    asked: list[None] = []
    with TimeLimit(3600.0, OVER, lambda: asked.append(None), stuck_is_wrong):
        pass
    with (
        pytest.raises(ValueError, match="its own"),
        TimeLimit(3600.0, OVER, lambda: asked.append(None), stuck_is_wrong),
    ):
        raise ValueError("its own")
    assert not asked


@pytest.mark.parametrize("raises", [False, True])
def test_what_was_interrupted_timed_out_whatever_it_makes_of_that(raises: bool) -> None:
    interrupted = threading.Event()
    with pytest.raises(TaskTimedOut) as raised, TimeLimit(0.01, OVER, interrupted.set, stuck_is_wrong):
        assert interrupted.wait(10)
        if raises:
            raise ValueError("the job was cancelled")
    assert raised.value is OVER and isinstance(raised.value.__cause__, ValueError) == raises


def test_the_next_try_begins_after_the_last_one_was_interrupted() -> None:
    interrupts, ended, over = threading.Event(), threading.Event(), threading.Event()

    def interrupt() -> None:
        interrupts.set()
        # Spark is slow, and the try ends by itself.
        ended.wait(0.3)
        over.set()

    with pytest.raises(TaskTimedOut), TimeLimit(0.01, OVER, interrupt, stuck_is_wrong):
        assert interrupts.wait(10)
    assert over.is_set()


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("how", ["ignored", "hangs", "raises"])
def test_what_goes_on_is_given_up_and_does_nothing_more(how: str) -> None:
    given_up, over, after = threading.Event(), threading.Event(), threading.Event()

    def interrupt() -> None:
        if how == "hangs":
            threading.Event().wait()
        if how == "raises":
            raise OSError("Spark is away")

    def give_up(_: TaskTimedOut) -> None:
        given_up.set()

    def work() -> None:
        with TimeLimit(0.01, OVER, interrupt, give_up):
            over.wait(10)
        after.set()

    threading.Thread(target=work, daemon=True).start()
    assert given_up.wait(10)
    over.set()
    assert not after.wait(0.2)


def test_each_try_has_its_own_limit_and_number() -> None:
    numbers: list[int] = []
    interrupted = threading.Event()

    def limit(_: Any, number: int) -> Any:
        numbers.append(number)
        interrupted.clear()
        return TimeLimit(0.01 if number < 3 else 3600.0, OVER, interrupted.set, lambda _: None)

    def body(_: Any) -> None:
        assert numbers[-1] == 3 or interrupted.wait(10)

    fields: list[Any] = []
    result = Execution(
        [task("a", retries=2)], body, lambda *told: fields.append(told), lambda _: None, around=limit
    ).run()
    assert result.succeeded and numbers == [1, 2, 3]
    assert [(told[1], told[2]) for told in fields] == [
        ("running", 1), ("retrying", 1), ("running", 2), ("retrying", 2), ("running", 3), ("succeeded", 3),
    ]  # fmt: skip
    assert fields[1][3].type == TASK_TIMED_OUT


@pytest.mark.parametrize(("used", "numbers"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [3])])
def test_tries_that_ended_earlier_drivers_are_used_up(used: int, numbers: list[int]) -> None:
    tried: list[int] = []
    slept: list[float] = []

    def body(_: Any) -> None:
        raise ValueError("no luck")

    def tell(task: str, state: TaskState, try_number: int = 1, error: ErrorInfo | None = None) -> None:
        if state == TaskState.RUNNING:
            tried.append(try_number)

    tasks = [task("a", retries=2, retry_delay_seconds=10.0)]
    result = Execution(tasks, body, tell, slept.append, used={"a": used}).run()
    assert not result.succeeded and tried == numbers
    # Every try but the first one waits, longer each time.
    assert [round(each / 10) for each in slept] == [1, 2][max(0, used - 1) :]


def test_a_task_whose_work_can_be_interrupted_fails_and_the_driver_reports_it(world: World) -> None:
    world.spark.on_interrupt = lambda: world_module(world).go.set()
    world.launch(wait=True, limits=LIMIT)
    world.begins(1, DONE)
    assert world.reports.fields() == [
        "RunBegan",
        "TaskReported a running",
        "TaskReported a failed",
        "RunReported failed",
        "AttemptEnded done",
    ]
    error = world.reports.bodies[3]["error"]
    assert (error["type"], error["message"]) == (TASK_TIMED_OUT, MESSAGE)
    assert "its work was ended" in error["traceback"]
    assert "interrupt retrofill-attempt-25-run-1-a" in world.spark.calls


@pytest.mark.usefixtures("short_grace")
def test_a_driver_with_a_task_that_cannot_be_interrupted_says_so_and_ends(world: World) -> None:
    world.launch(wait=True, limits=LIMIT, runs=2)
    world.say({"begin": 60.0})
    said = world.hear()["timed_out"]
    assert (said["task"], said["try_number"]) == ("a", 1)
    assert (said["error"]["type"], said["error"]["message"]) == (TASK_TIMED_OUT, MESSAGE)
    assert world.hear() == {"lost": {"why": MESSAGE, "shared": False}}
    assert world.left.get(timeout=10) == 1
    # It closes its session, and reports nothing of the task.
    assert world.spark.calls[-1] == "interrupt"
    world_module(world).go.set()
    threading.Event().wait(0.2)
    assert world.reports.fields() == ["RunBegan", "TaskReported a running"]


def test_a_script_ends_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = (
        "import os, pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    )
    script = tmp_path / "script.py"
    script.write_text(
        f"import subprocess, sys; print('loading', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"
    )
    made = script_launch(str(script))
    other, mine = Plain(Config(), made), Plain(Config(), made)
    of: Any = made.pipeline.tasks[0]

    def interrupt() -> None:
        wait_until(lambda: pid.exists() and pid.read_text())
        other.end_task("a")
        mine.end_task("b")
        mine.end_task("a")

    with pytest.raises(TaskTimedOut) as raised, TimeLimit(0.01, OVER, interrupt, lambda e: None):
        mine.run(of, fields_of(made))
    assert str(raised.value) == f"too long\n{script} ended with signal 9: loading"
    wait_until(lambda: gone(int(pid.read_text())))


def test_the_host_reports_what_a_driver_said_before_it_ended(pool_world: Any) -> None:
    error = {"type": TASK_TIMED_OUT, "message": "too long"}
    pool = pool_world.pool()
    pool.launch(launch(1, run_ids=[7, 8], over={"task": "a", "try_number": 2, "error": error}))
    begun, over = pool_world.host.over.get(timeout=20)
    assert (begun, over) == (7, TimedOut("a", 2, over.error))
    assert over.error.type == TASK_TIMED_OUT


def test_the_name_of_the_error_is_what_launches_look_for() -> None:
    assert TaskTimedOut.__name__ == TASK_TIMED_OUT


def test_a_launch_without_tries_is_one_of_an_older_release() -> None:
    assert script_launch().runs[0].tries == {}


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.0, "1s"), (90.0, "90s"), (600.0, "10m"), (5400.0, "90m"), (7200.0, "2h"), (2.5, "2.5s")]
)
def test_durations_as_users_write_them(seconds: float, text: str) -> None:
    assert written(seconds) == text


def test_the_text_of_a_range_says_what_one_run_has() -> None:
    text = timed_out("it", 600.0, 30, "its timeout")
    assert re.fullmatch(r"it timed out after 5h \(10m for each of 30 runs\): raise its timeout, or .*", text)
