"""The scheduler interface that the in-memory servers need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Turns(Protocol):
    """Lets several sessions take turns."""

    now: float

    def step(self, what: str) -> None:
        """Other tasks may run here."""

    def wait(self, what: object, seconds: float | None = None) -> bool:
        """Wait for ``wake(what)``, at most ``seconds``; returns whether it was woken."""

    def wake(self, what: object) -> None:
        """Wake the tasks that wait for ``what``."""

    def at(self, moment: float, action: Callable[[], object]) -> None:
        """Call ``action`` at true time ``moment``."""
