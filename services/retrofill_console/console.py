"""The object that every page of the console uses, with the answers that viewers share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from starlette.concurrency import run_in_threadpool

from retrofill_console.live import Hub
from retrofill_core.settings import Settings
from retrofill_core.store.engine import make_engine
from retrofill_tools.client.connect import snapshot

NAME = "retrofill-console"
# Pages that are read at the same time; the others wait.
CONNECTIONS = 6
# An answer without an event since is given again for so long: not everything has events.
FRESH_SECONDS = 1.0
# Between the begins of two computations of one page, or as long as one takes.
APART_SECONDS = 0.1
MOST = 200
Work = Callable[[], bytes]


@dataclass(frozen=True)
class Console:
    """``settings`` have the console's Kafka login; ``engine`` is of the read-only role."""

    settings: Settings
    engine: Engine
    hub: Hub
    shared: Shared

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read-only transaction whose statements all see the same snapshot."""
        with snapshot(self.engine) as conn:
            yield conn


def make_console(settings: Settings) -> Console:
    """Connects to nothing yet. Raises ``NotConfigured`` if an address is missing."""
    settings.bootstrap_servers()
    hub = Hub()
    engine = make_engine(settings.dsn_of("reader"), NAME, pool_size=CONNECTIONS, limited=True)
    return Console(settings, engine, hub, Shared(lambda: hub.version))


@dataclass(frozen=True)
class _Answer:
    version: tuple[int, int]
    at: float
    body: bytes


class Shared:
    """Computes each answer at most once at a time. None is older than the last event before it was asked for."""

    def __init__(self, version: Callable[[], int]) -> None:
        """``version``: rises with every event."""
        self._events = version
        self._asked = 0
        self._answers: dict[str, _Answer] = {}
        # Those that have not begun: whoever asks now gets their answer.
        self._coming: dict[str, asyncio.Task[bytes]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def forget(self) -> None:
        """A request was carried out: its sender must not read the former state, even before the event arrives."""
        self._asked += 1

    def _version(self) -> tuple[int, int]:
        return self._events(), self._asked

    async def get(self, key: str, work: Work) -> bytes:
        """The answer of ``work``, which runs in a thread. Raises what it raises."""
        known = self._answers.get(key)
        if known is not None and known.version == self._version() and time.monotonic() - known.at < FRESH_SECONDS:
            return known.body
        if key not in self._coming:
            self._coming[key] = asyncio.create_task(self._compute(key, work))
        # Whoever leaves does not take the others' answer away.
        return await asyncio.shield(self._coming[key])

    async def _compute(self, key: str, work: Work) -> bytes:
        try:
            return await self._compute_alone(key, work)
        finally:
            self._tidy(key)

    async def _compute_alone(self, key: str, work: Work) -> bytes:
        async with self._locks.setdefault(key, asyncio.Lock()):
            # From here on, others may need a later one.
            del self._coming[key]
            version, began = self._version(), time.monotonic()
            body = await run_in_threadpool(work)
            self._keep(key, _Answer(version, began, body))
            if key in self._coming:
                await asyncio.sleep(max(APART_SECONDS - (time.monotonic() - began), 0.0))
            return body

    def _keep(self, key: str, answer: _Answer) -> None:
        self._answers.pop(key, None)
        self._answers[key] = answer
        if len(self._answers) > MOST:
            oldest = next(iter(self._answers))
            del self._answers[oldest]
            self._tidy(oldest)

    def _tidy(self, key: str) -> None:
        """Remove the lock of a key without an answer, unless somebody has it or waits for it."""
        # A lock that was released is not locked, though the one who waits for it gets it next.
        waited_for = key in self._coming
        if key in self._locks and key not in self._answers and not waited_for and not self._locks[key].locked():
            del self._locks[key]
