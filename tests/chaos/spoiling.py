"""Messages that nobody can read, for each topic that a service reads: the workload puts them between its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from retrofill.contract.topics import SERVICES, Topic
from tests.chaos.history import POISON

READ = tuple(sorted({topic for service in SERVICES.values() for topic in service.reads}))
# None of them is null: on a compacted topic that is no poison, it removes what the key names.
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
    """Draws messages that cannot be read; ``sent`` are the keys of those that the broker has."""

    chance: random.Random
    name: str
    sent: set[str] = field(default_factory=set)
    _count: int = 0

    def draw(self, topic: Topic | None = None) -> tuple[Topic, str, bytes, Headers]:
        """Topic, key, value, headers; a key of its own, on the partition where it belongs."""
        self._count += 1
        key = f"{POISON}{self.name}-{self._count}"
        return (
            topic or self.chance.choice(READ),
            key,
            self.chance.choice(VALUES),
            [*self.chance.choice(HEADERS)],
        )
