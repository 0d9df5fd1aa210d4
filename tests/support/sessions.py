"""Scripted store sessions that run on the real Postgres and on the simulated store and return
comparable results.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import Engine, RowMapping, text
from sqlalchemy.exc import DBAPIError

from tests.simulation.memory.engine import Database, MemoryConnection
from tests.simulation.scheduler import Scheduler, Task

Action = Callable[[Any], Any]
Step = tuple[str, Action]
# Clock values differ; everything else must be equal.
RECENT = datetime(2025, 1, 1, tzinfo=UTC)


def commit(conn: Any) -> None:
    """End the session's transaction. The next step begins another."""
    conn.commit()


def together(*actions: Action) -> Action:
    """Several actions as one step, whose result is the list of theirs."""
    return lambda conn: [action(conn) for action in actions]


def rollback(conn: Any) -> None:
    conn.rollback()


class Store(Protocol):
    """Plays scripts."""

    def play(self, steps: Sequence[Step]) -> list[Any]:
        """Take the steps in order. A step that waits for a lock lets the next ones continue.

        Returns each step's result, normalized by ``fields``. A result is ``["waited", result]`` if
        the step had to wait for another session.
        """


def fields(value: Any) -> Any:
    """A result without server-specific differences: clock values, and how rows are wrapped."""
    if isinstance(value, DBAPIError):
        return f"error {getattr(value.orig, 'sqlstate', None)}"
    if isinstance(value, datetime):
        return "now" if value > RECENT else value.astimezone(UTC)
    if isinstance(value, RowMapping | dict):
        return {str(name): fields(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [fields(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((fields(each) for each in value), key=repr)
    if is_dataclass(value) and type(value).__module__.startswith("retrofill"):
        return {each.name: fields(getattr(value, each.name)) for each in dataclass_fields(value)}
    return value


def _take(action: Action, conn: Any) -> Any:
    try:
        return fields(action(conn))
    except DBAPIError as e:
        return fields(e)


class RealStore:
    """The real Postgres; each session has a thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def play(self, steps: Sequence[Step]) -> list[Any]:
        with self._sessions(sorted({name for name, _ in steps})) as sessions:
            pending: dict[str, int] = {}
            results: list[Any] = [None] * len(steps)
            for number, (name, action) in enumerate(steps):
                if name in pending:
                    results[pending[name]] = ["waited", sessions[name].answer()]
                    del pending[name]
                sessions[name].ask(action)
                if self._waits(sessions[name]):
                    pending[name] = number
                else:
                    results[number] = sessions[name].answer()
            for name, number in pending.items():
                results[number] = ["waited", sessions[name].answer()]
            return results

    def _waits(self, session: _RealSession) -> bool:
        """Whether the session's step waits for a lock, according to the server."""
        with self._engine.connect() as conn:
            while not session.done.is_set():
                blocked = conn.execute(text("SELECT cardinality(pg_blocking_pids(:pid)) > 0"), {"pid": session.pid})
                if blocked.scalar():
                    return True
                session.done.wait(0.005)
        return False

    @contextmanager
    def _sessions(self, names: list[str]) -> Iterator[dict[str, _RealSession]]:
        sessions = {name: _RealSession(self._engine) for name in names}
        try:
            yield sessions
        finally:
            for session in sessions.values():
                session.end()


class _RealSession:
    def __init__(self, engine: Engine) -> None:
        self.done = threading.Event()
        self._asked: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._answer: Any = None
        self._failure: Exception | None = None
        self._conn = engine.connect()
        self.pid: int = self._conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
        self._conn.rollback()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def ask(self, action: Action) -> None:
        self.done.clear()
        self._asked.put(action)

    def answer(self) -> Any:
        assert self.done.wait(30), "a step neither ended nor waits for a lock"
        if self._failure:
            raise self._failure
        return self._answer

    def end(self) -> None:
        self._asked.put(None)
        self._thread.join(30)

    def _serve(self) -> None:
        while (action := self._asked.get()) is not None:
            try:
                self._answer = _take(action, self._conn)
            except Exception as e:  # noqa: BLE001 - the script's own mistake, raised where the script is played
                self._failure = e
            self.done.set()
        self._conn.rollback()
        self._conn.close()


class MemoryStore:
    """The simulated store; each session is a task."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(0)
        self.database = Database(self.scheduler)

    def play(self, steps: Sequence[Step]) -> list[Any]:
        sessions = {name: _MemorySession(self, name) for name in sorted({name for name, _ in steps})}
        pending: dict[str, int] = {}
        results: list[Any] = [None] * len(steps)
        for number, (name, action) in enumerate(steps):
            if name in pending:
                self._run()
                results[pending.pop(name)] = ["waited", sessions[name].answer]
            sessions[name].action = action
            self.scheduler.wake(sessions[name])
            self._run()
            if sessions[name].action is None:
                results[number] = sessions[name].answer
            else:
                pending[name] = number
        for name, number in pending.items():
            assert sessions[name].action is None, f"the step {number} waits for ever"
            results[number] = ["waited", sessions[name].answer]
        for session in sessions.values():
            session.conn.rollback()
            self.scheduler.kill(session.task.process)
        return results

    def _run(self) -> None:
        """Run until every session waits, for its next step or for a lock."""
        self.scheduler.run(lambda: all(task.waits_for is not None for task in self.scheduler.tasks))


class _MemorySession:
    def __init__(self, store: MemoryStore, name: str) -> None:
        self.conn = MemoryConnection(store.database, name)
        self.action: Action | None = None
        self.answer: Any = None
        self._scheduler = store.scheduler
        self.task: Task = store.scheduler.spawn(store.scheduler.process(name), name, self._serve)

    def _serve(self) -> None:
        while True:
            while self.action is None:
                self._scheduler.wait(self)
            self.answer = _take(self.action, self.conn)
            self.action = None
