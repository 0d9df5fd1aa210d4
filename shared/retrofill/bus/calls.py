"""Calls made for other threads by the one that polls: a client that is polled answers nobody else meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
ANSWER_SECONDS = 20.0


class Calls:
    """A queue of calls, made in their order by whoever calls ``make``."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Callable[[], object], Future[object]]] = SimpleQueue()

    def ask(self, call: Callable[[], T]) -> Future[T]:
        """Have ``call`` made; its result or exception is the future's."""
        future: Future[T] = Future()
        self._waiting.put((call, future))  # type: ignore[arg-type]  # the queue forgets what each call returns
        return future

    def make(self) -> None:
        """Make the calls that wait."""
        while True:
            try:
                call, future = self._waiting.get_nowait()
            except Empty:
                return
            try:
                future.set_result(call())
            except Exception as e:  # noqa: BLE001 - it is the asker's
                future.set_exception(e)
