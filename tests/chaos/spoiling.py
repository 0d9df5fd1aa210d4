"""Poison messages for every topic that a service reads. The workload mixes them with its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from retrofill_core.contract.topics import SERVICES, Topic
from tests.chaos.history import POISON

READ = tuple(sorted({topic for service in SERVICES.values() for topic in service.reads}))
# No null value: on a compacted topic, that is no poison but a deletion of the key.
VALUES: tuple[bytes, ...] = (
    b"",
    b"{",
    b'{"type": "BackfillRequested"} {}',
    b"\xff\xfe{\x00}\x00",
    b'["a list"]',
    b"\x00\x00\x00\x00\x07{}",
    b'{"type": "NobodyKnowsThis"}',
    b'{"type": "BackfillPlanned", "version": 99}',
    b'{"type": "RunReported", "run_id": 99999999999999999999999}',
    b'{"type": "RunReported", "backfill_id": NaN}',
    b'{"type": "BackfillRequested", "pipeline": "\\u0000"}',
    b'{"a":' * 200 + b"1" + b"}" * 200,
)
Headers = list[tuple[str, str | bytes | None]]
HEADERS: tuple[Headers, ...] = ([], [], [("ce_type", b"\xff\xfe")], [("ce_id", b"a\x00b")], [("any", b"\xc3\x28")])


@dataclass
class Spoiler:
    """Draws poison messages. ``sent`` holds the keys that the broker acknowledged."""

    chance: random.Random
    name: str
    sent: set[str] = field(default_factory=set)
    _count: int = 0

    def draw(self, topic: Topic | None = None) -> tuple[Topic, str, bytes, Headers]:
        """Topic, key, value and headers; each message has its own key, on the correct partition."""
        self._count += 1
        key = f"{POISON}{self.name}-{self._count}"
        return (
            topic or self.chance.choice(READ),
            key,
            self.chance.choice(VALUES),
            [*self.chance.choice(HEADERS)],
        )
