"""Topics that take no message: their rows wait in the outbox, and it is tried again at growing intervals."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FIRST_SECONDS = 5.0
MOST_SECONDS = 60.0


@dataclass(frozen=True)
class Held:
    """One topic: why it was refused, for how long it is left alone, and until when."""

    reason: str
    seconds: float
    until: float


class Holds:
    """The topics of one relay that were refused and have not taken a message since."""

    def __init__(self) -> None:
        self._held: Mapping[str, Held] = {}

    def hold(self, topic: str, reason: str) -> None:
        """Leave ``topic`` alone for a while, longer each time."""
        before = self._held.get(topic)
        seconds = FIRST_SECONDS if before is None else min(2 * before.seconds, MOST_SECONDS)
        # Replaced and not changed: other threads read it.
        self._held = {**self._held, topic: Held(reason, seconds, time.monotonic() + seconds)}

    def waiting(self) -> list[str]:
        """The topics that are not to be tried now."""
        now = time.monotonic()
        return [topic for topic, held in self._held.items() if held.until > now]

    def due(self) -> list[str]:
        """The topics that may be tried again."""
        return [topic for topic in self._held if topic not in self.waiting()]

    def took(self, topics: Iterable[str]) -> None:
        """Messages of these topics were published."""
        published = set(topics)
        if published & set(self._held):
            self._held = {topic: held for topic, held in self._held.items() if topic not in published}

    def seconds_to_next(self, most: float) -> float:
        """When the next topic may be tried again, ``most`` seconds at the latest."""
        now = time.monotonic()
        return min([most, *(max(0.0, held.until - now) for held in self._held.values())])

    def trouble(self) -> str | None:
        """A line for people, from any thread; ``None`` where every topic takes what is sent."""
        held = self._held
        if not held:
            return None
        return "; ".join(f"topic {topic} takes no events: {one.reason}" for topic, one in sorted(held.items()))
