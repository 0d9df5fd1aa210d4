"""A warm driver process, as its pool sees it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from retrofill_core.user_code.environments import Packed
from run_starter.executors import processes
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
