"""Maps the machine's clock to the Postgres clock, which a scenario may shift."""

from __future__ import annotations

import time
from bisect import bisect_right
from datetime import timedelta


class Clock:
    """Shifts of the Postgres clock, each at a time of the machine's clock."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, float]] = [(0.0, 0.0)]

    def jumped(self, offset: float) -> None:
        """Record that the Postgres clock is off by ``offset`` seconds from now on."""
        self._steps.append((time.time(), offset))

    def of_postgres(self, at: float) -> float:
        """The Postgres time at ``at`` on the machine's clock."""
        return at + self._steps[bisect_right([moment for moment, _ in self._steps], at) - 1][1]

    @property
    def slack(self) -> timedelta:
        """The largest jump: timestamps near a jump may be off by this much."""
        offsets = [offset for _, offset in self._steps]
        return timedelta(seconds=max(offsets) - min(offsets))
