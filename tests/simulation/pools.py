"""Pools of a schedule: some have two, and each of their run-starters serves one of them or both."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.pools import Pool

POOLS = {DEFAULT_POOL: Pool(), "other": Pool(driver_slots=1)}
# What a run-starter serves.
_SERVED = ([DEFAULT_POOL], ["other"], list(POOLS))


class Pools:
    """Which pools pipelines and run-starters use. Its choices leave a seed's other ones as they are."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"pools of {seed}")
        # Only the default one, unless the schedule has several.
        self.several = False

    def choose(self) -> None:
        """Decide whether there are several: in one of three schedules."""
        self.several = self._random.random() < 1 / 3

    def served(self) -> list[str]:
        """What the next run-starter serves."""
        return self._random.choice(_SERVED) if self.several else [DEFAULT_POOL]

    def of_pipeline(self) -> str:
        """The pool of the next definition."""
        return self._random.choice(list(POOLS)) if self.several else DEFAULT_POOL

    def unserved(self, served: Iterable[Collection[str]]) -> list[str]:
        """The pools in use that nobody serves."""
        found = {pool for pools in served for pool in pools}
        return [pool for pool in POOLS if self.several and pool not in found]
