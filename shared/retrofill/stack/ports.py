"""Ports on loopback: the preferred one, the one this home had, or the next that is free."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are only being forgotten is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Reservations:
    """Ports held for servers that do not listen yet: stacks that start at once choose different ones.

    Each is a locked file, so that what a killed process held is free again.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"retrofill-ports-{os.getuid()}"
        self._held: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        for lock in self._held.values():
            os.close(lock)
        self._held.clear()

    def choose(self, preferred: int, before: int | None) -> int:
        """The port this home had where it is free, ``preferred``, or the next free one above that."""
        candidates: list[int] = [
            preferred if before is None else before,
            *range(preferred, min(preferred + 2000, 65536)),
        ]
        for port in candidates:
            if port not in self._held and self._hold(port):
                if is_free(port):
                    return port
                os.close(self._held.pop(port))
        raise OSError(f"no free port from {preferred} on")

    def _hold(self, port: int) -> bool:
        lock = os.open(self._folder / f"{port}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        self._held[port] = lock
        return True


def answers(port: int) -> bool:
    """Whether something accepts connections on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
