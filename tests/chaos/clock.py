"""What Postgres' clock says at a moment of the machine's: a scenario may set it off."""

from __future__ import annotations

import time
from bisect import bisect_right
from datetime import timedelta


class Clock:
    """Steps of Postgres' clock, each at a moment of the machine's."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, float]] = [(0.0, 0.0)]

    def jumped(self, offset: float) -> None:
        """From now on it is off by so many seconds."""
        self._steps.append((time.time(), offset))

    def of_postgres(self, at: float) -> float:
        """Its moment at a moment of the machine's."""
        return at + self._steps[bisect_right([moment for moment, _ in self._steps], at) - 1][1]

    @property
    def slack(self) -> timedelta:
        """The largest jump: by so much two moments beside one may differ."""
        offsets = [offset for _, offset in self._steps]
        return timedelta(seconds=max(offsets) - min(offsets))
