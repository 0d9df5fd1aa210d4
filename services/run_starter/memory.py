"""What a shard's owner remembers between checks: a few numbers per pipeline, all of them hints."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

BACKFILL, PIPELINE = "b:", "p:"
# The check of the shard's leases and of what times out.
LEASES_KEY = "leases"
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
    # By pool: check keys that wait for a seat, the longest waiting first.
    starving: dict[str, dict[str, None]] = field(default_factory=dict)
    # Backfills with accepted runs that wait for a publisher, with their pipelines.
    to_publish: dict[str, int] = field(default_factory=dict)
    # By pipeline (its number) and pool: when a slot or a seat was first left to another shard.
    yielding_since: dict[int | str, float] = field(default_factory=dict)
    # By pool: what others were told when, that a backfill with so few live attempts waits for a seat.
    waits: dict[str, tuple[int, float]] = field(default_factory=dict)

    def starve(self, pool: str, keys: Iterable[str]) -> None:
        self.starving.setdefault(pool, {}).update(dict.fromkeys(keys))

    def check(self, keys: Collection[str]) -> None:
        """These are checked now, and wait for nothing any more."""
        for pool, waiting in list(self.starving.items()):
            for key in keys:
                waiting.pop(key, None)
            if not waiting:
                del self.starving[pool]

    def yielded_for(self, what: int | str) -> float:
        """Seconds since it was first left to others; 0 if it is not."""
        now = time.monotonic()
        return now - self.yielding_since.get(what, now)

    def leave(self, what: int | str, is_left: bool) -> float | None:
        """Returns for how long it is left to others by now: 0 the first time, ``None`` if it is not."""
        if not is_left:
            self.yielding_since.pop(what, None)
            return None
        first = what not in self.yielding_since
        self.yielding_since.setdefault(what, time.monotonic())
        return 0.0 if first else self.yielded_for(what)

    def says_again(self, pool: str, fewest: int, seconds: float) -> bool:
        """Whether others must be told, because it is news, or was said that long ago."""
        now = time.monotonic()
        before, at = self.waits.get(pool, (None, 0.0))
        if before == fewest and now - at < seconds:
            return False
        self.waits[pool] = (fewest, now)
        return True

    def unpublished(self, numbers: Collection[int]) -> list[str]:
        """Backfills of these pipelines with accepted runs that wait for a publisher."""
        return [id for id, no in self.to_publish.items() if no in numbers]

    def publish_later(self, waiting: Mapping[str, int], *, checked: Collection[str]) -> None:
        """Of the ``checked`` backfills, those in ``waiting`` have such runs."""
        for id in checked:
            self.to_publish.pop(id, None)
        self.to_publish |= waiting
