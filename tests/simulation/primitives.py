"""Replaces ``time``, ``threading`` and ``queue`` in the services: blocking calls yield the turn."""

from __future__ import annotations

import queue as real_queue
import threading as real_threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from tests.simulation.bus.connections import Connections
from tests.simulation.scheduler import Scheduler

_scheduler: Scheduler | None = None


def scheduler() -> Scheduler:
    """The scheduler of the running simulation."""
    assert _scheduler is not None
    return _scheduler


def running(on: Scheduler | None) -> None:
    """Set the simulation that the replaced names use."""
    global _scheduler
    _scheduler = on


def connections() -> Connections:
    """The Kafka connections of the current process."""
    found: Connections = scheduler().me().process.connections  # type: ignore[attr-defined]
    return found


class Time:
    @staticmethod
    def monotonic() -> float:
        running = scheduler()
        return running.now + (running.current.process.offset if running.current is not None else 0.0)

    time = monotonic

    @staticmethod
    def sleep(seconds: float) -> None:
        scheduler().wait(object(), seconds)


class Event:
    """An event whose waiters take turns."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True
        scheduler().wake(self)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until set or timed out; returns whether it is set."""
        running = scheduler()
        running.step("event")
        if not self._set:
            running.wait(self, timeout)
        return self._set


class Thread:
    """A thread of a simulated process."""

    def __init__(self, target: Callable[..., None], name: str = "", args: tuple[Any, ...] = (), daemon: bool = True):
        self._target, self.name, self._args = target, name, args
        self._over = Event()

    def start(self) -> None:
        running = scheduler()

        def body() -> None:
            self._target(*self._args)
            self._over.set()

        running.spawn(running.me().process, self.name, body)

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)


class Condition:
    """A condition variable. It needs no lock: no other task runs between two steps."""

    def __enter__(self) -> Condition:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        scheduler().wake(self)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``predicate`` holds or the timeout ends; returns whether it holds."""
        running = scheduler()
        running.step("condition")
        if not predicate():
            running.wait(self, timeout)
        return predicate()


class Threading:
    Condition = Condition
    Event = Event
    Thread = Thread
    Lock = real_threading.Lock


class SimpleQueue:
    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        scheduler().wake(self)

    def get(self, timeout: float | None = None) -> Any:
        """Remove the first item; raises ``Empty`` after ``timeout``."""
        running = scheduler()
        running.step("queue")
        if not self._items:
            running.wait(self, timeout)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        """Remove the first item; raises ``Empty`` if there is none."""
        if not self._items:
            raise real_queue.Empty
        return self._items.popleft()


class CallsQueue(SimpleQueue):
    """The queue of calls to the thread that polls Kafka. Adding one wakes that thread."""

    def put(self, item: Any) -> None:
        super().put(item)
        connections().asked()


class Queue:
    SimpleQueue = SimpleQueue
    Empty = real_queue.Empty


class Future:
    """A result that another thread of the same process provides."""

    def __init__(self) -> None:
        self._done = Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def __class_getitem__(cls, item: Any) -> type[Future]:
        return cls

    def set_result(self, result: Any) -> None:
        self._result = result
        self._done.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def result(self, timeout: float | None = None) -> Any:
        if not self._done.wait(timeout):
            raise FutureTimeout
        if self._error is not None:
            raise self._error
        return self._result
