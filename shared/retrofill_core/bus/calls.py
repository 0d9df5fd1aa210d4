"""Runs calls on the thread that polls a Kafka client: polling blocks calls of other threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
CALL_SECONDS = 20.0


class Calls:
    """A queue of calls, run in order by the thread that calls ``run_pending``."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Callable[[], object], Future[object]]] = SimpleQueue()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue ``call``; the future gets its result or exception."""
        future: Future[T] = Future()
        self._waiting.put((call, future))  # type: ignore[arg-type]  # the queue forgets what each call returns
        return future

    def run_pending(self) -> None:
        """Run the queued calls."""
        while True:
            try:
                call, future = self._waiting.get_nowait()
            except Empty:
                return
            try:
                future.set_result(call())
            except Exception as e:  # noqa: BLE001 - it belongs to the caller of ``submit``
                future.set_exception(e)
