"""The watch ends drivers whose attempts are over, and survives what goes wrong."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from retrofill_core.store import attempts
from run_starter.host import hosting
from run_starter.host.hosting import Watch
from run_starter.host.report_wire import Heartbeats

SECONDS = 20.0


class Hosted:
    """An executor of two drivers. The first attempt to end one fails, as without a thread."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.failed = False

    def hosted(self) -> set[int]:
        return {1, 2}

    def end(self, key: int) -> None:
        self.asked.put(key)
        if not self.failed:
            self.failed = True
            raise RuntimeError("can't start new thread")


@contextmanager
def reads(_: object) -> Iterator[None]:
    yield None


def test_a_driver_that_could_not_be_ended_is_ended_later_and_the_others_are_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Any] = [OSError("too many open files"), [1, 2], [1]]

    def over(*_: object) -> list[int]:
        answer = answers.pop(0) if answers else []
        if isinstance(answer, OSError):
            raise answer
        return list(answer)

    monkeypatch.setattr(hosting, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(hosting, "reading", reads)
    monkeypatch.setattr(attempts, "to_be_ended", over)
    executor = Hosted()
    watch = Watch(None, executor, Heartbeats(), lambda: [1])  # type: ignore[arg-type]
    watch.start()
    try:
        assert [executor.asked.get(timeout=SECONDS) for _ in range(3)] == [1, 2, 1]
    finally:
        watch.stop()
        watch.join(SECONDS)
