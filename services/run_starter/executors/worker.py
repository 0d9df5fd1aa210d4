"""A warm driver process, as its pool sees it, and the attempts that it matches.

A driver serves attempts of one environment: modules of another cannot replace those that it has imported.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from retrofill_core.user_code.environments import Packed
from run_starter.executors import LaunchRequest, processes
from run_starter.executors.answers import Answers


class Worker:
    """One warm process. Its messages are handled on its own reader thread, and sent by a thread of its own.

    A process that is stopped reads nothing, and a launch of many runs is larger than a pipe.
    """

    def __init__(self, process: subprocess.Popen[str], logged: int, packed: Packed | None = None) -> None:
        """``logged``: how much drivers had logged before it started."""
        self.process = process
        self.logged = logged
        # The environment that it runs in, for good.
        self.packed = packed
        self.ready = False
        self.retiring = False
        self.answers: Answers | None = None
        self.reader: threading.Thread | None = None
        # Why it gave up, and whether its whole Spark server was lost.
        self.why_lost: str | None = None
        self.shared = False
        # Whether it was ended because it did not get ready in time.
        self.overdue = False
        self._limit: threading.Timer | None = None
        # ``None`` closes the process's input.
        self._messages: SimpleQueue[dict[str, Any] | None] = SimpleQueue()

    def begin(self, listen: Callable[[Worker], None], seconds: float) -> None:
        """Start its threads; the reader's calls ``listen``. Raises ``RuntimeError`` after it has killed the process.

        It is ended if it is not ready after so many ``seconds``.
        """
        self._limit = threading.Timer(seconds, self._give_up)
        self._limit.daemon = True
        self.reader = threading.Thread(target=listen, args=(self,), name="driver-reader", daemon=True)
        try:
            threading.Thread(target=self._write, name="driver-writer", daemon=True).start()
            self.reader.start()
            self._limit.start()
        except RuntimeError:
            # No thread can be started, so nobody would notice its end.
            self.hang_up()
            self.process.kill()
            self.process.wait()
            raise

    def is_ready(self) -> None:
        """It may be given attempts."""
        self.ready = True
        if self._limit is not None:
            self._limit.cancel()

    def gives_up(self, fields: Mapping[str, Any]) -> None:
        """It has said why, as its last message."""
        self.why_lost, self.shared = str(fields["why"]), bool(fields["shared"])

    def _give_up(self) -> None:
        if not self.ready:
            self.overdue = True
            processes.end(self.process)

    @property
    def busy(self) -> bool:
        """Whether it has an attempt."""
        return self.answers is not None

    def send(self, message: dict[str, Any]) -> None:
        """Send one line, after those before it. Never blocks; whether the process has exited, its reader notices."""
        self._messages.put(message)

    def retire(self) -> None:
        """Let the idle process exit by closing its input."""
        self.retiring = True
        self.hang_up()

    def hang_up(self) -> None:
        """Close the process's input, after all messages. Never blocks."""
        if self._limit is not None:
            self._limit.cancel()
        self._messages.put(None)

    def _write(self) -> None:
        assert self.process.stdin is not None
        # The process may have exited.
        with suppress(OSError), self.process.stdin as pipe:
            while (message := self._messages.get()) is not None:
                pipe.write(json.dumps(message) + "\n")
                pipe.flush()


class Waiting(NamedTuple):
    """A waiting attempt and its environment."""

    launch: LaunchRequest
    packed: Packed | None


class Warm(Protocol):
    """A driver process. ``busy``: it has an attempt; ``retiring``: it gets no other."""

    packed: Packed | None
    ready: bool
    retiring: bool

    @property
    def busy(self) -> bool: ...


W = TypeVar("W", bound=Warm)


def matches(workers: Sequence[W], wanted: Sequence[Waiting]) -> Iterator[tuple[W, LaunchRequest]]:
    """Idle drivers for waiting attempts, in the order of the attempts."""
    idle = _idle(workers)
    for each in wanted:
        found = next((worker for worker in idle if each.launch.only_files or worker.packed == each.packed), None)
        if found is not None:
            idle.remove(found)
            yield found, each.launch


def to_replace(workers: Sequence[W], wanted: Sequence[Waiting], slots: int) -> list[W]:
    """Idle drivers to replace, for attempts that no driver is there or starting for."""
    missing = slots - len(workers)
    unmet = len(_unmet(workers, wanted)) - missing
    return _idle(workers)[: max(0, unmet)]


def to_start(workers: Sequence[Warm], wanted: Sequence[Waiting], otherwise: Packed | None) -> list[Packed | None]:
    """The environments of which the next driver may be, the preferred one first."""
    return _unmet(workers, wanted) or [otherwise]


def _unmet(workers: Sequence[Warm], wanted: Sequence[Waiting]) -> list[Packed | None]:
    """The environments of waiting attempts, less those of drivers that are starting."""
    coming = [worker.packed for worker in workers if not worker.ready]
    found = []
    for each in wanted:
        if each.packed in coming:
            coming.remove(each.packed)
        else:
            found.append(each.packed)
    return found


def _idle(workers: Sequence[W]) -> list[W]:
    return [worker for worker in workers if worker.ready and not worker.busy and not worker.retiring]
