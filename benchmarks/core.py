"""The common form of results: figures with their repeats and limits."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One measured quantity.

    Its median may be at most ``limit``, or with ``at_least`` must reach it; both are in ``unit``.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    limit: float | None = None
    at_least: bool = False
    # The machine's load at the time of measurement, since it is shared.
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the limit is met; ``None`` if there is none."""
        if self.limit is None:
            return None
        return self.median >= self.limit if self.at_least else self.median <= self.limit


@dataclass(frozen=True)
class Benchmark:
    """``run`` measures.

    The texts say what is measured, against what, and which result is wanted.
    """

    name: str
    what: str
    against: str
    aim: str
    run: Callable[[], Sequence[Figure]]


def figure(
    name: str, unit: str, values: Sequence[float], *, at_most: float | None = None, at_least: float | None = None
) -> Figure:
    """A figure with at most one limit."""
    limit = at_most if at_least is None else at_least
    return Figure(name, unit, tuple(values), limit, at_least is not None)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ratio per repeat: each was measured next to its peer."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]
