"""Sizes of schedules. Most are small: they run fast, and most bugs need no more."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Size:
    """The options of a schedule: the values in each field are equally likely."""

    partitions: tuple[int, ...]
    busy_seconds: tuple[float, ...]
    # Probability of having deadlines, and the number of alerts per run.
    with_deadlines: float
    alerts: int
    tasks: tuple[int, ...]
    lease_seconds: tuple[float, ...]
    replicas: tuple[int, ...]
    pipelines: tuple[int, ...]
    # Probability that a pipeline is applied again.
    applied_again: float
    backfills: tuple[int, ...]
    # Number of days in a backfill's range.
    days: tuple[int, ...]
    # A request arrives within this many seconds.
    within_seconds: tuple[float, ...]
    commands: tuple[int, ...]
    # Probability of a fault at each step.
    chances: tuple[float, ...]


SMALL = Size(
    partitions=(1, 1, 1, 2),
    busy_seconds=(5.0, 15.0, 30.0),
    with_deadlines=0.3,
    alerts=1,
    tasks=(1, 1, 1, 1, 2),
    lease_seconds=(4.0, 4.0, 12.0),
    replicas=(1, 1, 2),
    pipelines=(1,),
    applied_again=0.05,
    backfills=(1, 1, 1, 2),
    days=(1, 2, 2, 2, 2, 3),
    within_seconds=(0.2, 2.0),
    commands=(0, 0, 0, 1),
    chances=(0.002, 0.005, 0.01, 0.01, 0.02),
)
MIDDLE = Size(
    partitions=(1, 2, 3),
    busy_seconds=(10.0, 30.0),
    with_deadlines=0.5,
    alerts=2,
    tasks=(1, 2),
    lease_seconds=(4.0, 8.0, 15.0),
    replicas=(1, 1, 2),
    pipelines=(1, 1, 2),
    applied_again=0.2,
    backfills=(1, 2),
    days=(1, 2, 3),
    within_seconds=(1.0, 6.0),
    commands=(0, 0, 1, 2),
    chances=(0.0, 0.003, 0.01),
)
LARGE = replace(
    MIDDLE,
    partitions=(1, 2, 2, 3),
    busy_seconds=(20.0, 40.0),
    applied_again=0.3,
    backfills=(1, 2, 3),
    within_seconds=(1.0, 12.0),
    commands=(0, 0, 1, 3),
    chances=(0.0, 0.002, 0.005, 0.01),
)


def choose(chance: random.Random) -> Size:
    """Choose a size; usually a small one."""
    return chance.choices((SMALL, MIDDLE, LARGE), weights=(90, 8, 2))[0]
