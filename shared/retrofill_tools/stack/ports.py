"""Loopback ports, held from when they are chosen until their server listens.

Without holding it, another process could take a chosen port before the server binds it. On Linux, a
bound socket with SO_REUSEADDR that does not listen reserves a port: the kernel does not assign it
as an ephemeral port, but a server that requests this port with the same option can bind it. Java,
Postgres and Python servers do.

A stack also keeps its ports while one of its servers restarts: their files name the process that
supervises it. Another stack that took such a port would get the clients of the first.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from retrofill.system.processes import STACK

# On other systems, a bound socket would also keep the server from binding.
_CAN_HOLD = sys.platform == "linux"


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    try:
        _bound(port).close()
    except OSError:
        return False
    return True


@contextmanager
def held_port() -> Iterator[int]:
    """Reserve any free port for a server. Leave the block once the server listens."""
    with _bound(0) as holder:
        port: int = holder.getsockname()[1]
        if not _CAN_HOLD:
            holder.close()
        yield port


def _bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # As servers do: a port with only TIME_WAIT connections is free.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
    except OSError:
        made.close()
        raise
    return made


class Reservations:
    """Ports held until servers listen, so concurrently starting stacks choose different ones.

    Each has a bound socket, and a locked file against other stacks, which could bind it like the
    server. A killed process releases both.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"retrofill-ports-{os.getuid()}"
        self._held: dict[int, int] = {}
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        for lock in self._held.values():
            os.close(lock)
        for holder in self._sockets:
            holder.close()
        self._held.clear()
        self._sockets.clear()

    def choose(self, preferred: int, before: int | None) -> int:
        """The port ``before`` if it is free, else ``preferred`` or the next free one above it.

        Raises ``OSError`` if none is free.
        """
        candidates: list[int] = [
            preferred if before is None else before,
            *range(preferred, min(preferred + 2000, 65536)),
        ]
        for port in candidates:
            if port not in self._held and self._hold(port):
                if self._bind(port):
                    return port
                os.close(self._held.pop(port))
        raise OSError(f"no free port at or above {preferred}")

    def _bind(self, port: int) -> bool:
        try:
            holder = _bound(port)
        except OSError:
            return False
        if _CAN_HOLD:
            self._sockets.append(holder)
        else:
            holder.close()
        return True

    def keep(self, pid: int, stack_id: str) -> None:
        """Leave the ports to this process of a stack for as long as it runs."""
        owner = f"{pid} {stack_id}".encode()
        for lock in self._held.values():
            os.ftruncate(lock, 0)
            os.pwrite(lock, owner, 0)

    def _hold(self, port: int) -> bool:
        lock = os.open(self._folder / f"{port}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        if _runs(os.pread(lock, 100, 0).decode().split()):
            os.close(lock)
            return False
        self._held[port] = lock
        return True


def _runs(owner: list[str]) -> bool:
    """Whether the process that a port was left to still runs; ``owner`` is its pid and its stack's id."""
    if len(owner) != 2:
        return False
    try:
        # A pid may have been given to another process; a start time changes with the clock.
        return psutil.Process(int(owner[0])).environ().get(STACK) == owner[1]
    except psutil.Error:
        return False


def answers(port: int) -> bool:
    """Whether something accepts connections on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
