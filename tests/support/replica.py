"""One process of a service, which tests kill, freeze and stop."""

from __future__ import annotations

import signal
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path

from tests.support.forks import Forked


@dataclass
class Replica:
    """One service process."""

    process: subprocess.Popen[bytes] | Forked
    log: Path

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Send SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def is_stopped(self) -> bool:
        """Whether the process stands still, as after a crash point that ends in ``:stop``. Fails if it has exited."""
        assert self.process.poll() is None, self.said()
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def tell_to_stop(self) -> None:
        """Send SIGTERM, after SIGCONT in case the process is stopped."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()

    def stop(self) -> None:
        """Stop it as an operator does; after 20 seconds, kill it and warn with what its threads were at."""
        self.tell_to_stop()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            before = len(self.said())
            # The services' environment has PYTHONFAULTHANDLER.
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            warnings.warn(f"{self.log.name} did not stop within 20 s: {self.said()[before:]}", stacklevel=2)

    def said(self) -> str:
        """Its log."""
        return self.log.read_text()
