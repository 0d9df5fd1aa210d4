"""What the services' modules get instead of ``time``, ``threading``, ``queue``, ``uuid`` and Kafka's clients.

The modules themselves are the real ones: their references to these libraries are exchanged while a simulation runs.
"""

from __future__ import annotations

import logging
import queue as real_queue
import threading as real_threading
import uuid as real_uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import structlog
from tenacity import Retrying

from retrofill.bus import transaction
from retrofill.bus.transaction import Transaction
from tests.simulation.bus.admin import FakeAdmin
from tests.simulation.bus.connections import Connections
from tests.simulation.bus.consumer import FakeConsumer
from tests.simulation.bus.producer import FakeProducer
from tests.simulation.interned import interned
from tests.simulation.scheduler import Scheduler

_scheduler: Scheduler | None = None


def scheduler() -> Scheduler:
    """Of the simulation that runs."""
    assert _scheduler is not None
    return _scheduler


def _connections() -> Connections:
    found: Connections = scheduler().me().process.connections  # type: ignore[attr-defined]
    return found


class _Time:
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
        """Wake those who wait."""
        self._set = True
        scheduler().wake(self)

    def clear(self) -> None:
        """Not any more."""
        self._set = False

    def is_set(self) -> bool:
        """Whether it is."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is set."""
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
        """Begin."""
        running = scheduler()

        def body() -> None:
            self._target(*self._args)
            self._over.set()

        running.spawn(running.me().process, self.name, body)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self._over.wait(timeout)


class Condition:
    """A condition whose waiters take turns. Nobody else runs between two steps, so there is nothing to lock."""

    def __enter__(self) -> Condition:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        """Wake those who wait."""
        scheduler().wake(self)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Until it holds, or the time is over."""
        running = scheduler()
        running.step("condition")
        if not predicate():
            running.wait(self, timeout)
        return predicate()


class _Threading:
    Condition = Condition
    Event = Event
    Thread = Thread
    Lock = real_threading.Lock


class SimpleQueue:
    """A queue whose readers take turns."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Add."""
        self._items.append(item)
        scheduler().wake(self)

    def get(self, timeout: float | None = None) -> Any:
        """The first, or ``Empty``."""
        running = scheduler()
        running.step("queue")
        if not self._items:
            running.wait(self, timeout)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        """The first, or ``Empty``."""
        if not self._items:
            raise real_queue.Empty
        return self._items.popleft()


class CallsQueue(SimpleQueue):
    """Calls for the thread that polls Kafka: they wake it."""

    def put(self, item: Any) -> None:
        """Add."""
        super().put(item)
        _connections().asked()


class _Queue:
    SimpleQueue = SimpleQueue
    Empty = real_queue.Empty


class Future:
    """An answer that somebody of the same process gives."""

    def __init__(self) -> None:
        self._done = Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def __class_getitem__(cls, item: Any) -> type[Future]:
        return cls

    def set_result(self, result: Any) -> None:
        """The answer."""
        self._result = result
        self._done.set()

    def set_exception(self, error: BaseException) -> None:
        """What was raised instead."""
        self._error = error
        self._done.set()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it."""
        if not self._done.wait(timeout):
            raise FutureTimeout
        if self._error is not None:
            raise self._error
        return self._result


class _Uuid:
    UUID = real_uuid.UUID
    uuid5 = staticmethod(real_uuid.uuid5)

    @staticmethod
    def uuid4() -> real_uuid.UUID:
        return real_uuid.UUID(int=scheduler().random.getrandbits(128), version=4)


def _producer(settings: Any, client_id: str, **more: Any) -> FakeProducer:
    return FakeProducer(_connections(), more)


def _reader(settings: Any, client_id: str, **more: Any) -> FakeConsumer:
    return FakeConsumer(_connections(), {"group.id": client_id, **more})


@contextmanager
def _noted_transaction(engine: Any, service: Any, partition: int, epoch: int, most: int) -> Iterator[Transaction]:
    """The real one, with a note for the oracle of whose transaction it is."""
    with transaction.shard_transaction(engine, service, partition, epoch, most) as tx:
        noted: Any = tx.conn
        noted.notes["shard"] = (f"{service.package}_shard", partition, epoch)
        yield tx


def _announce(notifications: Any) -> None:
    """After a commit: this process hears at once, the others a little later, where it is still there to tell them."""
    scheduler().step("announce")
    scheduler().me().process.announce(list(notifications))  # type: ignore[attr-defined]


def _retrying(**how: Any) -> Retrying:
    return Retrying(sleep=_Time.sleep, **how)


def _start_as_task(self: Any) -> None:
    """Instead of ``threading.Thread.start``, for the services' threads."""
    running = scheduler()
    running.spawn(running.me().process, self.name, self.run)


def _no_join(self: Any, timeout: float | None = None) -> None:
    """Instead of ``join``: whoever stops a process in the simulation looks at its tasks."""


_PACKAGES = ("retrofill", "backfill_planner", "run_starter", "deadline_watcher", "callback_runner")
# module → the names in it that are exchanged
_EXCHANGED: dict[str, dict[str, Any]] = {
    "retrofill.bus.loop": {"time": _Time, "shard_transaction": _noted_transaction},
    "retrofill.bus.shard": {"time": _Time},
    "retrofill.bus.transaction": {"announce": _announce},
    "retrofill.bus.inbox": {"queue": _Queue},
    "retrofill.bus.calls": {"SimpleQueue": CallsQueue, "Future": Future},
    "retrofill.bus.envelope": {"uuid": _Uuid},
    "retrofill.bus.takeover": {"admin": lambda settings, client_id: FakeAdmin(_connections())},
    "retrofill.bus.poller": {
        "Consumer": lambda config: FakeConsumer(_connections(), config),
        "threading": _Threading,
        "Poller.start": _start_as_task,
        "Poller.join": _no_join,
    },
    "retrofill.bus.cursor": {"time": _Time, "reader": _reader},
    "retrofill.bus.sending": {"time": _Time},
    "retrofill.bus.holds": {"time": _Time},
    "retrofill.bus.membership": {
        "Consumer": lambda config: FakeConsumer(_connections(), config),
        "threading": _Threading,
        "Membership.start": _start_as_task,
        "Membership.join": _no_join,
    },
    "retrofill.bus.relay": {
        "threading": _Threading,
        "time": _Time,
        "producer": _producer,
        "Relay.start": _start_as_task,
        "Relay.join": _no_join,
    },
    "retrofill.bus.metrics": {"register": lambda collector: None},
    "run_starter.handler": {"producer": _producer},
    "run_starter.claims": {"time": _Time},
    "run_starter.hosting": {"threading": _Threading, "Watch.start": _start_as_task, "Watch.join": _no_join},
    "deadline_watcher.setaside": {"time": _Time},
    "callback_runner.call": {"threading": _Threading, "time": _Time, "Retrying": _retrying},
    "callback_runner.handler": {
        "threading": _Threading,
        "time": _Time,
        "make_engine": lambda dsn, name, **_: scheduler().me().process.make_engine(),  # type: ignore[attr-defined]
        "Kinds": lambda settings, installation, instance: scheduler().me().process.kinds,  # type: ignore[attr-defined]
    },
    "callback_runner.claims": {"uuid": _Uuid},
}


@contextmanager
def exchanged() -> Iterator[None]:
    """The services' modules work on the simulation that is ``running()`` meanwhile."""
    before: list[tuple[Any, str, Any]] = []
    level = logging.CRITICAL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level), cache_logger_on_first_use=False)
    for module, names in _EXCHANGED.items():
        for name, instead in names.items():
            owner: Any = import_module(module)
            *path, last = name.split(".")
            for part in path:
                owner = getattr(owner, part)
            before.append((owner, last, owner.__dict__.get(last, _MISSING)))
            setattr(owner, last, instead)
    try:
        with interned(_PACKAGES):
            yield
    finally:
        for owner, name, value in reversed(before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        structlog.reset_defaults()


_MISSING = object()


def running(on: Scheduler | None) -> None:
    """Which simulation the exchanged names are about."""
    global _scheduler
    _scheduler = on
