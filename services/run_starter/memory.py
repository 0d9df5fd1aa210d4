"""What the owner of a shard remembers between looks: no more than a few numbers for each pipeline.

All of it is a hint; the rows decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

BACKFILL, PIPELINE = "b:", "p:"


def backfill_key(id: str) -> str:
    """Look at one backfill."""
    return f"{BACKFILL}{id}"


def pipeline_key(no: int) -> str:
    """Look whether a slot of a pipeline is free, and for whom."""
    return f"{PIPELINE}{no}"


def backfills_in(keys: Iterable[str]) -> list[str]:
    """The ids of the backfills among look keys."""
    return [key.removeprefix(BACKFILL) for key in keys if key.startswith(BACKFILL)]


def pipelines_in(keys: Iterable[str]) -> list[int]:
    """The numbers of the pipelines among look keys."""
    return [int(key.removeprefix(PIPELINE)) for key in keys if key.startswith(PIPELINE)]


@dataclass
class Memory:
    """Of one shard."""

    # Pipelines that have had a backfill here to start runs of.
    pipelines: set[int] = field(default_factory=set)
    # Look keys of what waits for a driver of this instance, in the order in which they began to.
    starving: dict[str, None] = field(default_factory=dict)
    # By pipeline: when a slot was first left to another shard.
    yielding_since: dict[int, float] = field(default_factory=dict)

    def starve(self, keys: Iterable[str]) -> None:
        """These wait for a driver."""
        self.starving |= dict.fromkeys(keys)
