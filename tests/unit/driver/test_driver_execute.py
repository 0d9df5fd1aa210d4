"""Task execution: order, parallelism, retries with their reports, and how errors are reported."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest

from retrofill.driver.execute import MAX_PARALLEL, Execution, Result, backoff
from retrofill.protocol.facts import ErrorInfo, as_json, clean, error_info, without_jvm
from retrofill.protocol.launch import Task
from retrofill.states import TASK_RUN_MACHINE, TaskState
from retrofill_core.contract.base import decode
from retrofill_core.contract.runs import RunReported

S = TaskState
Told = list[tuple[str, str, int, ErrorInfo | None]]


def task(name: str, *after: str, **more: Any) -> Task:
    return Task.of({"name": name, "after": after, **more})


def run(tasks: list[Task], body: Any) -> tuple[Result, Told, list[float]]:
    fields: Told = []
    slept: list[float] = []

    def tell(task: str, state: TaskState, try_number: int = 1, error: ErrorInfo | None = None) -> None:
        fields.append((task, state, try_number, error))

    result = Execution(tasks, body, tell, slept.append).run()
    for name in {t.name for t in tasks}:
        steps = [S.NONE, *(S(state) for who, state, _, _ in fields if who == name)]
        for from_states, to in pairwise(steps):
            assert TASK_RUN_MACHINE.allows(from_states, to) or (from_states, to) == (S.NONE, S.RUNNING)
    return result, fields, slept


def test_tasks_run_in_order_and_independent_ones_at_once() -> None:
    group = threading.Barrier(2, timeout=5)

    def body(task: Task) -> None:
        if task.name in "bc":
            group.wait()

    result, fields, _ = run([task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c")], body)
    assert result == Result(True)
    states = [(name, state) for name, state, _, _ in fields]
    assert states[:2] == [("a", "running"), ("a", "succeeded")]
    assert states[-2:] == [("d", "running"), ("d", "succeeded")]


def test_a_wide_run_never_runs_more_than_its_share_at_once() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def body(_: Task) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.005)
        with lock:
            now -= 1

    result, fields, _ = run([task(f"t{i}") for i in range(30)], body)
    assert result.succeeded
    assert most <= MAX_PARALLEL
    assert sum(state == "queued" for _, state, _, _ in fields) == 30 - MAX_PARALLEL


def test_retries_are_told_with_the_error_and_wait_longer_each_time() -> None:
    tries = []

    def body(_: Task) -> None:
        tries.append(1)
        if len(tries) < 4:
            raise ValueError(f"try {len(tries)}")

    result, fields, slept = run([task("a", retries=5, retry_delay_seconds=1.0)], body)
    assert result.succeeded
    assert [(state, number, error and error.message) for _, state, number, error in fields] == [
        ("running", 1, None),
        ("retrying", 1, "try 1"),
        ("running", 2, None),
        ("retrying", 2, "try 2"),
        ("running", 3, None),
        ("retrying", 3, "try 3"),
        ("running", 4, None),
        ("succeeded", 4, None),
    ]
    for seconds, least in zip(slept, (1, 2, 4), strict=True):
        assert least <= seconds <= least + 0.2


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2), RecursionError("deep")])
def test_the_last_error_fails_the_task_and_the_run(error: BaseException) -> None:
    def body(_: Task) -> None:
        raise error

    result, fields, slept = run([task("a", retries=1, retry_delay_seconds=0), task("b", "a")], body)
    assert not result.succeeded
    assert result.error is not None
    assert (result.error.type, result.error.message) == (type(error).__name__, str(error))
    assert [(name, state) for name, state, _, _ in fields][-2:] == [("a", "failed"), ("b", "upstream_failed")]
    assert len(slept) == 1


def test_a_keyboard_interrupt_in_a_task_neither_retries_nor_hangs() -> None:
    def body(_: Task) -> None:
        raise KeyboardInterrupt

    result, _, slept = run([task("a", retries=3)], body)
    assert not result.succeeded
    assert slept == []


def test_branches_are_followed_and_a_wrong_one_fails() -> None:
    tasks = [task("b", kind="branch"), task("x", "b"), task("y", "b")]
    result, fields, _ = run(tasks, lambda t: "x" if t.name == "b" else None)
    assert result.succeeded
    assert {(name, state) for name, state, _, _ in fields} >= {("x", "succeeded"), ("y", "skipped")}
    result, fields, _ = run(tasks, lambda _: "nope")
    assert result.error is not None
    assert "'nope'" in result.error.message


def test_the_backoff_is_capped() -> None:
    assert [round(backoff(10, tries) / 10) for tries in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert 86_400 <= backoff(10, 60) <= 86_402
    assert 86_400 <= backoff(10, 6000) <= 86_402


def test_an_error_keeps_the_users_frames_and_drops_ours() -> None:
    def body(_: Task) -> None:
        raise ValueError("here")

    result, _, _ = run([task("a")], body)
    assert result.error is not None
    assert result.error.traceback is not None
    assert "test_driver_execute.py" in result.error.traceback
    assert 'execute.py", line' not in result.error.traceback.replace("test_driver_execute.py", "")


def test_an_error_of_any_text_can_be_sent_and_read() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    for error in (Odd(), ValueError("\0 \\u0000 \ud800" + "x" * 100_000), Exception("a\n" * 50_000)):
        try:
            raise error
        except Exception as e:  # noqa: BLE001
            fields = error_info(e)
        report = RunReported(backfill_id="b", attempt_id=1, run_id=1, attempt=1, state="failed", error=as_json(fields))
        assert decode(report.encode()) == report


def test_a_long_message_does_not_push_the_place_out() -> None:
    try:
        raise ValueError("x" * 50_000)
    except ValueError as e:
        fields = error_info(e)
    assert fields.traceback is not None
    assert "test_driver_execute.py" in fields.traceback


def test_frames_of_the_jvm_are_left_out() -> None:
    text = "[NOT_FOUND] nowhere\n\nJVM stacktrace:\norg.X: y\n\tat a.b(C:1)\n\tat d.e(F:2)\nCaused by: z\n\tat g\nafter"
    assert without_jvm(text) == "[NOT_FOUND] nowhere\nafter"
    assert clean("fine – ü") == "fine – ü"
