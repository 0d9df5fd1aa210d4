"""A warm driver process, as its pool sees it."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import Any

from retrofill.user_code.environments import Packed
from run_starter.executors.answers import Answers


class Worker:
    """One warm process. Its messages are handled on its own reader thread."""

    def __init__(self, process: subprocess.Popen[str], logged: int, packed: Packed | None = None) -> None:
        """``logged``: how much drivers had logged before it started."""
        self.process = process
        self.logged = logged
        # The environment that it runs in, for good.
        self.packed = packed
        self.ready = False
        self.retiring = False
        self.answers: Answers | None = None
        self.runs = 0
        self.reader: threading.Thread | None = None
        self.why_lost: str | None = None
        self._writing = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether it has an attempt."""
        return self.answers is not None

    def send(self, message: dict[str, Any]) -> bool:
        """Send one line. Returns False if the process has exited, which its reader notices too."""
        assert self.process.stdin is not None
        try:
            with self._writing:
                self.process.stdin.write(json.dumps(message) + "\n")
                self.process.stdin.flush()
        except OSError:
            return False
        return True

    def retire(self) -> None:
        """Let the idle process exit by closing its input."""
        self.retiring = True
        assert self.process.stdin is not None
        with self._writing:
            self.process.stdin.close()
