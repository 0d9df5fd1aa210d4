"""A webhook receiver that records when each request arrived."""

from __future__ import annotations

import time

from tests.support.receiver import Answer, Receiver, Request


class TimedReceiver(Receiver):
    """Records the machine's time with each request."""

    def __init__(self) -> None:
        self._timed: list[tuple[float, Request]] = []
        super().__init__()

    def timed(self, path: str) -> list[tuple[float, Request]]:
        """The requests to ``path``, each with its time."""
        return [(at, request) for at, request in list(self._timed) if request.path == path]

    def _take(self, request: Request) -> Answer:
        self._timed.append((time.time(), request))
        return super()._take(request)
