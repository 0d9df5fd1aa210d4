"""A TCP proxy between a service and a server that can cut, stall and slow connections."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from typing import Self


class Proxy:
    """Forwards bytes from a loopback port to ``target``. ``delay`` slows each chunk (seconds).

    ``passed``: bytes that were forwarded, in both directions. ``refused``: connections.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = False
        self.delay = 0.0
        self.passed = 0
        self.refused = 0
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        """Start listening."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Cut all connections and stop listening."""
        self.cut()
        self._listener.close()

    def cut(self) -> None:
        """Reset all connections and refuse new ones until ``mend``."""
        self._refusing = True
        self._flowing.set()
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for side in pair:
                _reset(side)

    def stall(self) -> None:
        """Keep connections open but forward nothing until ``mend``."""
        self._flowing.clear()

    def mend(self) -> None:
        """Forward everything again, without delay."""
        self._refusing = False
        self.delay = 0.0
        self._flowing.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                self.refused += 1
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                _reset(client)
                continue
            with self._lock:
                self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                source.setblocking(True)
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError, ValueError):
            while True:
                select.select([source], [], [])
                self._flowing.wait()
                data = source.recv(65536)
                if not data:
                    break
                if self.delay:
                    time.sleep(self.delay)  # the fault itself: a slow link
                sink.sendall(data)
                with self._lock:
                    self.passed += len(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def _reset(side: socket.socket) -> None:
    """Close with a TCP reset."""
    with suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        side.close()
