"""One attempt in its own driver: its process, its connection with the first message on it, and its end."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from retrofill.system.files import PrivateFolder
from run_starter.executors import processes
from run_starter.executors.answers import Answers

# A driver sends its token at once; strangers may connect if the port is not on loopback.
HANDSHAKE_SECONDS = 5.0
MAX_HANDSHAKE_CHARS = 1000


def handshake(connection: socket.socket, token: str) -> IO[str] | None:
    """What the driver sends, line by line, if its first message is the token."""
    # For reading only: a file for both drops what it has read ahead when it is written to.
    lines = connection.makefile("r", encoding="utf-8")
    try:
        connection.settimeout(HANDSHAKE_SECONDS)
        sent = json.loads(lines.readline(MAX_HANDSHAKE_CHARS) or "{}").get("token")
        connection.settimeout(None)
    except (OSError, ValueError, AttributeError):
        sent = None
    known = isinstance(sent, str) and secrets.compare_digest(sent.encode(), token.encode())
    return lines if known else None


# A driver that is stopped reads nothing, so a message may be on its way to it forever.
ASK_SECONDS = 0.1


@dataclass
class Submitted:
    """One attempt in its own driver, which may be ``remote``: in the cluster.

    ``connection``: set once the driver has connected.
    """

    answers: Answers
    process: subprocess.Popen[str]
    server: socket.socket
    token: str
    folder: PrivateFolder
    remote: bool
    connection: socket.socket | None = None
    ending: bool = False
    why_lost: str | None = None
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def connect(self, connection: socket.socket) -> bool:
        """Store the driver's connection. Returns False if the driver is being ended."""
        with self._writing:
            self.connection = connection
            return not self.ending

    def send(self, message: dict[str, Any]) -> bool:
        """Send one line. Returns False if the driver is being ended or has hung up, which its reader notices too."""
        with self._writing:
            return not self.ending and self._try(message)

    def end(self) -> None:
        """Ask the driver to exit, and kill what is left after a grace period. Returns at once.

        A signal would stop Spark first, and the driver would report the failing tasks.
        """
        if self._ask():
            processes.kill_later(self.process)
        else:
            processes.end(self.process)

    def hang_up(self) -> None:
        """Close the connection, whoever reads or writes there. What has arrived is still read."""
        if self.connection is not None:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _ask(self) -> bool:
        free = self._writing.acquire(timeout=ASK_SECONDS)
        try:
            before, self.ending = self.ending, True
            return free and not before and self.connection is not None and self._try({"end": True})
        finally:
            if free:
                self._writing.release()

    def _try(self, message: dict[str, Any]) -> bool:
        assert self.connection is not None
        try:
            self.connection.sendall(f"{json.dumps(message)}\n".encode())
        except OSError:
            # Either side has closed the connection.
            return False
        return True
