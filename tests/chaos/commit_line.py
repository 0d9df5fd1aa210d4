"""A Postgres proxy that resets connections during COMMIT: before it arrives or before the reply."""

from __future__ import annotations

import socket
from contextlib import suppress
from enum import Enum

from tests.support.proxy import Proxy, _reset

# psycopg's COMMIT: a simple query (Q), or a parsed statement (P) in the extended protocol.
COMMIT = b"COMMIT\x00"


class When(Enum):
    """When the connection breaks."""

    BEFORE = "before the server has it"
    AFTER = "before its answer"


class CommitLine(Proxy):
    """Forwards all traffic, but while breaking is on, resets every ``every``-th COMMIT."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(target)
        self.when: When | None = None
        self.every = 1
        self.hits = 0
        self._seen = 0
        self._doomed: set[int] = set()

    def break_commits(self, when: When, every: int) -> None:
        """Reset every ``every``-th COMMIT from now on."""
        self.every = every
        self.when = when

    def mend(self) -> None:
        """Stop breaking commits."""
        self.when = None
        super().mend()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with self._lock:
            pair = next((pair for pair in self._pairs if source in pair), None)
        if pair is None:
            return
        with suppress(OSError, ValueError):
            while data := source.recv(65536):
                if source is pair[0] and COMMIT in data and (when := self._to_be_hit()) is not None:
                    if when is When.BEFORE:
                        break
                    # Withhold the reply: the server has committed by then.
                    self._doomed.add(id(pair))
                elif source is pair[1] and id(pair) in self._doomed:
                    break
                sink.sendall(data)
            else:
                with suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)
                return
        for side in pair:
            _reset(side)

    def _to_be_hit(self) -> When | None:
        when = self.when
        if when is None:
            return None
        with self._lock:
            self._seen += 1
            if self._seen % self.every:
                return None
            self.hits += 1
        return when
