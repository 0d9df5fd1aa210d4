"""What the servers of memory need of whoever lets several sessions take turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Turns(Protocol):
    """What the database needs of whoever lets several sessions take turns."""

    now: float

    def step(self, what: str) -> None:
        """Others may go on here."""

    def wait(self, what: object, seconds: float | None = None) -> bool:
        """Until ``wake(what)``."""

    def wake(self, what: object) -> None:
        """Those who wait for ``what`` go on."""

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Do ``action`` at true time ``moment``."""
