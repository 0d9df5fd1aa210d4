"""The time limit of one try of a task.

The work is interrupted where it has handles: jobs of Spark, and scripts. Python offers none that is
safe for code that holds locks or sits in a system call. If the task goes on, the process ends.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Callable

from retrofill.driver.submit import SubmitFailed
from retrofill.log import get_log

log = get_log(__name__)
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
