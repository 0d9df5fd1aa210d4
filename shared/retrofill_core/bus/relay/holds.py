"""Topics that refuse messages: their rows wait in the outbox, with growing pauses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from retrofill_core.store.outbox import Stored

FIRST_SECONDS = 5.0
MAX_SECONDS = 60.0


@dataclass(frozen=True)
class Held:
    """One topic: why it was refused, the current pause in seconds, and its end (monotonic).

    ``rows``: those that it did not store in time, the first of each partition.
    """

    reason: str
    seconds: float
    until: float
    rows: Sequence[Stored] = ()


class Holds:
    """The topics of one relay that were refused and have not accepted a message since."""

    def __init__(self) -> None:
        self._held: Mapping[str, Held] = {}

    def hold(self, topic: str, reason: str, rows: Sequence[Stored] = ()) -> None:
        """Pause ``topic``, twice as long each time, up to ``MAX_SECONDS``."""
        before = self._held.get(topic)
        seconds = FIRST_SECONDS if before is None else min(2 * before.seconds, MAX_SECONDS)
        # Replaced, never mutated: other threads read it.
        self._held = {**self._held, topic: Held(reason, seconds, time.monotonic() + seconds, rows)}

    def waiting(self) -> list[str]:
        """Topics that must not be tried yet."""
        now = time.monotonic()
        return [topic for topic, held in self._held.items() if held.until > now]

    def due(self) -> dict[str, Held]:
        """Held topics that may be tried again."""
        waiting = self.waiting()
        return {topic: held for topic, held in self._held.items() if topic not in waiting}

    def release(self, topics: Iterable[str]) -> None:
        """End the holds on ``topics``."""
        published = set(topics)
        if published & set(self._held):
            self._held = {topic: held for topic, held in self._held.items() if topic not in published}

    def seconds_to_next(self, limit: float) -> float:
        """Seconds until the next topic is due, at most ``limit``."""
        now = time.monotonic()
        return min([limit, *(max(0.0, held.until - now) for held in self._held.values())])

    def problem(self) -> str | None:
        """One line on the topics that refuse events, ``None`` if none does; from any thread."""
        held = self._held
        if not held:
            return None
        return "; ".join(f"topic {topic} rejects events: {one.reason}" for topic, one in sorted(held.items()))
