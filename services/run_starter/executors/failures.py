"""Failures of an environment in a row here: they say when it is tried again, and when it is to blame."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from run_starter.executors import processes

# After so many faults in a row, the runs that need it fail.
TRIES = 3
# For so long after its last fault, others that need it fail without a try: each would hold a seat for nothing.
BLAMED_SECONDS = 60.0
K = TypeVar("K", bound=Hashable)


@dataclass
class _Failed:
    """In a row. ``faults``: those of its own, not of this machine or of Spark. ``reason``: of the last of these."""

    count: int = 0
    faults: int = 0
    at: float = 0.0
    blamed_at: float = 0.0
    reason: str = ""


class Failures(Generic[K]):
    """By what failed. Not locked: its owner's lock guards it."""

    def __init__(self) -> None:
        self._failed: dict[K, _Failed] = {}

    def failed(self, what: K, reason: str, *, fault: bool) -> None:
        """It failed once more. ``fault``: of its own, so it would fail elsewhere too."""
        found = self._failed.setdefault(what, _Failed())
        found.count, found.at = found.count + 1, time.monotonic()
        if fault:
            found.faults, found.blamed_at, found.reason = found.faults + 1, found.at, reason

    def worked(self, what: K) -> None:
        """It did not fail."""
        self._failed.pop(what, None)

    def pause(self, what: K) -> float:
        """Seconds until it is tried again; longer after each failure."""
        found = self._failed.get(what)
        return 0.0 if found is None else max(0.0, found.at + processes.pause(found.count) - time.monotonic())

    def are_final(self, what: K) -> bool:
        """Whether it failed so often that what needs it fails, too."""
        found = self._failed.get(what)
        return found is not None and found.count >= TRIES

    def blamed(self, what: K) -> str | None:
        """Why what needs it fails now, if that is its own fault."""
        found = self._failed.get(what)
        is_over = found is None or found.faults < TRIES or time.monotonic() - found.blamed_at >= BLAMED_SECONDS
        return None if found is None or is_over else found.reason
