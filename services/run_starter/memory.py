"""What a shard's owner remembers between checks: a few numbers per pipeline, all of them hints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

BACKFILL, PIPELINE = "b:", "p:"
# The check of the shard's pipelines that have suspects.
SUSPECTS_KEY = "suspects"


def backfill_key(id: str) -> str:
    """The check of one backfill."""
    return f"{BACKFILL}{id}"


def pipeline_key(no: int) -> str:
    """The check whether a pipeline has a free slot, and which backfill gets it."""
    return f"{PIPELINE}{no}"


def slot_freed(no: int, shard: int) -> str:
    """The notification that a pipeline may have a free slot, from a shard that checks it itself."""
    return f"{no}/{shard}"


def suspect_ended(shard: int) -> str:
    """The notification that a Spark server may have another suspect, from a shard that checks its own."""
    return f"suspect/{shard}"


def key_in(payload: str) -> tuple[str, int] | None:
    """What to check because of such a notification, and its shard, or ``None`` for another one."""
    about, _, shard = payload.partition("/")
    if not shard.isdecimal() or not (about.isdecimal() or about == "suspect"):
        return None
    return SUSPECTS_KEY if about == "suspect" else pipeline_key(int(about)), int(shard)


def backfills_in(keys: Iterable[str]) -> list[str]:
    """The ids of the backfills among check keys."""
    return [key.removeprefix(BACKFILL) for key in keys if key.startswith(BACKFILL)]


def pipelines_in(keys: Iterable[str]) -> list[int]:
    """The numbers of the pipelines among check keys."""
    return [int(key.removeprefix(PIPELINE)) for key in keys if key.startswith(PIPELINE)]


@dataclass
class Memory:
    """The memory of one shard."""

    # Pipelines that have had running backfills in the shard.
    pipelines: set[int] = field(default_factory=set)
    # Check keys that wait for a driver of this instance, the longest waiting first.
    starving: dict[str, None] = field(default_factory=dict)
    # Backfills with accepted runs that wait for a publisher, with their pipelines.
    to_publish: dict[str, int] = field(default_factory=dict)
    # By pipeline: when a slot was first left to another shard.
    yielding_since: dict[int, float] = field(default_factory=dict)

    def starve(self, keys: Iterable[str]) -> None:
        self.starving |= dict.fromkeys(keys)

    def unpublished(self, numbers: Collection[int]) -> list[str]:
        """Backfills of these pipelines with accepted runs that wait for a publisher."""
        return [id for id, no in self.to_publish.items() if no in numbers]

    def publish_later(self, waiting: Mapping[str, int], *, checked: Collection[str]) -> None:
        """Of the ``checked`` backfills, those in ``waiting`` have such runs."""
        for id in checked:
            self.to_publish.pop(id, None)
        self.to_publish |= waiting
