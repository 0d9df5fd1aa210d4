"""Executes the tasks of one run: independent ones in parallel, each with its retries and the time limit of each try.

After its time, work is interrupted where it has handles: jobs of Spark, and scripts. Python offers none that is safe for code
that holds locks or sits in a system call. If the task goes on, the process ends.
"""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Callable, ContextManager, Mapping, Protocol, Sequence

from retrofill.driver.graph import choose, next_step, outcome
from retrofill.driver.submit import SubmitFailed
from retrofill.log import get_log, write_error
from retrofill.masking import masked
from retrofill.protocol.facts import ErrorInfo, Published, error_info, whole_traceback
from retrofill.protocol.launch import Task
from retrofill.states import TaskState

log = get_log(__name__)
S = TaskState
# Concurrent tasks of one run. Spark does the actual work.
MAX_PARALLEL = 8
MAX_DELAY_SECONDS = 86_400.0
# Beyond this, doubling changes nothing and would overflow.
MAX_DOUBLINGS = 100
# Exceptions that fail a try. SystemExit is a script's sys.exit; KeyboardInterrupt is not included.
FAILURES = (Exception, SystemExit)

Body = Callable[[Task], object]
Sleep = Callable[[float], object]
Around = Callable[[Task, int], ContextManager[object]]


class OnTaskState(Protocol):
    """Called from any thread when a task changes its state."""

    def __call__(self, task: str, state: TaskState, try_number: int = 1, error: ErrorInfo | None = None) -> None: ...


@dataclass(frozen=True)
class Ended:
    """The outcome of one task's function; ``error`` is from its last try."""

    task: Task
    tries: int
    returned: object = None
    error: ErrorInfo | None = None


@dataclass(frozen=True)
class Result:
    """The outcome of a run or range; ``error`` is from the task that failed first.

    ``everywhere``: it would be the same for every interval, so smaller ranges are not tried.
    ``published``: the outputs of a run. ``put_off``: its accepted output cannot be published now, which is no failure.
    ``changed``: those of its outputs that were not published, as others have changed what they would replace; ``bases``:
    what that is now, of all.
    """

    succeeded: bool
    error: ErrorInfo | None = None
    everywhere: bool = False
    published: tuple[Published, ...] = ()
    put_off: bool = False
    changed: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()


class Execution:
    """The tasks of one run.

    Only the thread in ``run`` changes states; task threads report to it. ``around``: what surrounds
    a try of a task, by its number. ``used``: tries of tasks in earlier drivers.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        body: Body,
        tell: OnTaskState,
        sleep: Sleep | None = None,
        *,
        around: Around = lambda *_: nullcontext(),
        used: Mapping[str, int] | None = None,
    ) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._body = body
        self._tell = tell
        self._sleep = sleep or threading.Event().wait
        self._around = around
        self._used = used or {}
        self._states = dict.fromkeys(self._tasks, S.NONE)
        self._branches: dict[str, frozenset[str]] = {}
        self._waiting: deque[str] = deque()
        self._running = 0
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        self._first_error: ErrorInfo | None = None

    def run(self) -> Result:
        """Run all tasks that their trigger rules allow; returns when every task is done."""
        self._advance()
        while True:
            end = outcome(self._states)
            if end is not None:
                break
            self._finish(self._ended.get())
            self._advance()
        return Result(end == S.SUCCEEDED, None if end == S.SUCCEEDED else self._first_error)

    def _advance(self) -> None:
        """Settle tasks that will never run, and start those that may."""
        step = next_step(list(self._tasks.values()), self._states, self._branches)
        for name, state in step.settled.items():
            if name in self._waiting:
                self._waiting.remove(name)
            self._enter(name, state)
        for name in step.queue:
            self._states[name] = S.QUEUED
            self._waiting.append(name)
            if self._running + len(self._waiting) > MAX_PARALLEL:
                self._tell(name, S.QUEUED)
        while self._waiting and self._running < MAX_PARALLEL:
            self._start(self._tasks[self._waiting.popleft()])

    def _start(self, task: Task) -> None:
        self._running += 1
        self._enter(task.name, S.RUNNING, self._used.get(task.name, 0) + 1)
        threading.Thread(target=self._work, args=(task,), name=f"task-{task.name}", daemon=True).start()

    def _finish(self, ended: Ended) -> None:
        self._running -= 1
        error = ended.error
        if error is None and ended.task.kind == "branch":
            error = self._follow_branch(ended)
        self._first_error = self._first_error or error
        self._enter(ended.task.name, S.FAILED if error else S.SUCCEEDED, ended.tries, error)

    def _follow_branch(self, ended: Ended) -> ErrorInfo | None:
        try:
            self._branches[ended.task.name] = choose(list(self._tasks.values()), ended.task.name, ended.returned)
        except Exception as e:  # noqa: BLE001 - what it returned is the user's, and may do anything
            return error_info(e)
        return None

    def _enter(self, name: str, state: TaskState, try_number: int = 1, error: ErrorInfo | None = None) -> None:
        self._states[name] = state
        self._tell(name, state, try_number, error)

    def _work(self, task: Task) -> None:
        """The task's thread: its tries, one after another."""
        used = self._used.get(task.name, 0)
        if used:
            # After the try that ended its driver.
            self._sleep(backoff(task.retry_delay_seconds, used))
        for tries in range(used + 1, max(task.retries, used) + 2):
            if tries > used + 1:
                self._tell(task.name, S.RUNNING, tries)
            returned, error = self._try(task, tries)
            if error is None:
                return self._ended.put(Ended(task, tries, returned))
            if tries > task.retries or not isinstance(error, FAILURES):
                return self._ended.put(Ended(task, tries, error=error_info(error)))
            self._tell(task.name, S.RETRYING, tries, error_info(error))
            self._sleep(backoff(task.retry_delay_seconds, tries))
        raise AssertionError("the last try ends the loop")

    def _try(self, task: Task, tries: int) -> tuple[object, BaseException | None]:
        """What the task's function returned, or raised."""
        process = os.getpid()
        try:
            with self._around(task, tries):
                return self._body(task), None
        except BaseException as e:  # noqa: BLE001 - or the run would wait for this thread forever
            if isinstance(e, SystemExit) and e.code in (None, 0):
                # As scripts and programs end that have done their work.
                return None, None
            # As it is: reports have the user's frames only.
            write_error(masked(f"task {task.name}, try {tries} failed:\n{whole_traceback(e)}"))
            return None, e
        finally:
            if os.getpid() != process:
                # The task forked, and its child came back here: it must not report anything.
                os._exit(0)


def backoff(delay_seconds: float, tries: int) -> float:
    """Seconds to wait after so many tries: the delay, doubled for each further one, plus up to 20 % jitter."""
    jitter = random.uniform(0, delay_seconds / 5)
    return min(delay_seconds * 2.0 ** min(tries - 1, MAX_DOUBLINGS), MAX_DELAY_SECONDS) + jitter


GRACE_SECONDS = 10.0


class TaskTimedOut(Exception):
    """A try of a task took longer than the task's ``timeout``. The text of one of a script has its last lines."""

    def __str__(self) -> str:
        said = f"\n{self.__cause__}" if isinstance(self.__cause__, SubmitFailed) else ""
        return f"{super().__str__()}{said}"


class TimeLimit:
    """Raises ``TaskTimedOut`` at the end of its block if that took longer than ``seconds``.

    ``interrupt`` should make the block end. ``stuck`` is called if it does not within a grace
    period, and must end the process.
    """

    def __init__(
        self,
        seconds: float,
        error: TaskTimedOut,
        interrupt: Callable[[], object],
        stuck: Callable[[TaskTimedOut], object],
    ) -> None:
        self._seconds = seconds
        self._error = error
        self._interrupt = interrupt
        self._stuck = stuck
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._over = self._leaves = False
        # In a thread: Spark may not answer.
        self._interrupter = threading.Thread(target=self._try_to_interrupt, name="interrupt", daemon=True)

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="time-limit", daemon=True).start()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        with self._lock:
            self._ended.set()
        if self._leaves:
            # It has been given up: nothing that it still does may be reported.
            threading.Event().wait()
        if self._over:
            # Or it would interrupt the task's next try.
            self._interrupter.join(GRACE_SECONDS)
            raise self._error from error

    def _watch(self) -> None:
        if self._ended.wait(self._seconds):
            return
        with self._lock:
            if self._ended.is_set():
                return
            self._over = True
            self._interrupter.start()
        log.warning("task_timed_out", error=str(self._error))
        self._ended.wait(GRACE_SECONDS)
        with self._lock:
            self._leaves = not self._ended.is_set()
        if self._leaves:
            self._stuck(self._error)

    def _try_to_interrupt(self) -> None:
        try:
            self._interrupt()
        except Exception as e:  # noqa: BLE001 - the process ends if the task goes on
            log.warning("task_not_interrupted", error=str(e))
