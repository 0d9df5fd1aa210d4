"""State that the parts of one worker share, and what becomes of a shard that cannot continue: it backs off, or is lost.

Its shards are those fixed at init, and partitions added to a topic later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain

from sqlalchemy import Engine

from retrofill.errors import first_line, kind_and_line
from retrofill.log import get_log
from retrofill_core.bus import metrics
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Locked, Poison
from retrofill_core.bus.handler import Handler
from retrofill_core.bus.poller import Poller
from retrofill_core.bus.takeover import TopicIds, added_transaction, record_added_try, record_try
from retrofill_core.bus.transaction import Transaction, shard_transaction
from retrofill_core.bus.worker.shard import Ownership, Shard
from retrofill_core.contract.topics import Service
from retrofill_core.settings import Settings

log = get_log(__name__)
# Failures in a row before readiness reports the shard, within half a minute of the first.
STUCK_FAILURES = 5
# What metrics call the steps towards owning a shard.
STATES = {
    Ownership.OWNED: "owned",
    Ownership.ASSIGNED: "taking_over",
    Ownership.FENCED: "taking_over",
    Ownership.SEEKING: "taking_over",
    Ownership.STOPPED: "stopped",
}


class Shards:
    """All shards that an instance may own (docs/decisions/added-partitions.md)."""

    def __init__(self, partitions: int, topics: Sequence[str]) -> None:
        self._topics = tuple(topics)
        self._fixed = {p: Shard(p, self._topics) for p in range(partitions)}
        self._added: dict[tuple[str, int], Shard] = {}

    def __getitem__(self, partition: int) -> Shard:
        """A shard fixed at init. Raises ``KeyError`` for an added partition."""
        return self._fixed[partition]

    def __iter__(self) -> Iterator[Shard]:
        return chain(self._fixed.values(), list(self._added.values()))

    def at(self, topic: str, partition: int) -> Shard:
        """The shard of a topic's partition; an added partition is a shard of its own."""
        fixed = self._fixed.get(partition)
        if fixed is not None:
            return fixed
        return self._added.setdefault((topic, partition), Shard(partition, (topic,), added=True))

    def seeking(self, partition: int, ticket: int) -> Shard | None:
        """The shard still waiting to be positioned with ``ticket``, if any."""
        found = (s for s in self if (s.partition, s.ticket, s.ownership) == (partition, ticket, Ownership.SEEKING))
        return next(found, None)

    def problems(self) -> dict[str, str | None]:
        """One line on all shards that cannot continue, under ``shards``; from any thread."""
        lines = [f"{s.topics[0] if s.added else 'shard'} {s.partition}: {line}" for s in self for line in _stuck(s)]
        return {"shards": "; ".join(lines) or None}

    def owned(self) -> list[int]:
        """Partitions, without added ones, that this instance owns; from any thread."""
        return [shard.partition for shard in self._fixed.values() if shard.ownership is Ownership.OWNED]

    def by_state(self) -> dict[str, int]:
        """The number of shards that are assigned to this instance, by state; from any thread."""
        counts = dict.fromkeys(STATES.values(), 0)
        for shard in self:
            if shard.ownership in STATES:
                counts[STATES[shard.ownership]] += 1
        return counts


def _stuck(shard: Shard) -> Iterator[str | None]:
    """Why the shard, or a topic of it, cannot continue."""
    if shard.ownership is Ownership.STOPPED or shard.failures >= STUCK_FAILURES:
        yield shard.problem
    yield from shard.waiting(STUCK_FAILURES)


@dataclass
class WorkerContext:
    """Shared by the parts of one worker.

    ``partitions``: as fixed at init. ``busy_since``: monotonic, ``None`` while the worker is idle.
    """

    settings: Settings
    service: Service
    instance: str
    engine: Engine
    poller: Poller
    handler: Handler
    topic_ids: TopicIds
    partitions: int
    shards: Shards = field(init=False)
    busy_since: float | None = None

    def __post_init__(self) -> None:
        self.shards = Shards(self.partitions, [str(topic) for topic in self.service.reads])

    def progressed(self) -> None:
        """Mark the start of a step: the liveness probe times each step separately."""
        self.busy_since = time.monotonic()

    def transaction(self, shard: Shard) -> AbstractContextManager[Transaction]:
        """Begin a transaction of ``shard``. Raises ``Fenced`` for a former owner."""
        limit = self.settings.max_message_bytes
        if shard.added:
            return added_transaction(self.engine, self.service, shard.partition, limit)
        return shard_transaction(self.engine, self.service, shard.partition, shard.epoch, limit)

    def record_try(self, shard: Shard, record: Record | None, deaths: int = 0) -> None:
        """Commit that ``record``, or nothing, is being tried. Raises ``Fenced`` for a former owner."""
        if shard.added:
            record_added_try(self.engine, self.service, shard.partition, shard.offsets, record, deaths)
        else:
            record_try(self.engine, self.service, shard.partition, shard.epoch, record, deaths)

    def schedule_checks(self, shard: Shard, checks: Mapping[str, float]) -> None:
        """Schedule checks of a shard: ``checks`` is seconds from now by key."""
        now = time.monotonic()
        for key, after in checks.items():
            shard.schedule_check(key, now + after)


FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0


class Failures:
    """The failures of one worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def fenced(self, shard: Shard, error: Exception) -> None:
        """Another instance owns the shard: drop its state; it may be taken over again."""
        metrics.FENCES.labels("shard").inc()
        log.warning("fenced", shard=shard.partition, epoch=shard.epoch, error=short(error))
        shard.last_offsets = shard.offsets
        self.lose(shard, Ownership.FENCED)
        shard.retry_at = 0.0

    def back_off(self, shard: Shard, error: BaseException, event: str) -> None:
        """Retry the shard after a pause that doubles up to ``MAX_BACKOFF_SECONDS``."""
        shard.failures += 1
        shard.problem = short(error)
        seconds = pause(FIRST_BACKOFF_SECONDS, shard.failures - 1)
        shard.retry_at = time.monotonic() + seconds
        log.warning(event, shard=shard.partition, seconds=seconds, error=short(error))

    def hold(self, shard: Shard, record: Record, error: BaseException) -> None:
        """Retry ``record`` after a pause that doubles likewise; only its topic waits for it."""
        queue = shard.queues[record.topic]
        seconds = pause(FIRST_BACKOFF_SECONDS, queue.refused)
        problem = f"the message at offset {record.offset} waits for a locked row: {short(error)}"
        queue.refuse(time.monotonic() + seconds, problem)
        shard.others_first = True
        place = {"topic": record.topic, "offset": record.offset}
        log.warning("message_waits", shard=shard.partition, **place, seconds=seconds, error=short(error))

    def lose(self, shard: Shard, ownership: Ownership) -> None:
        """Drop the shard's state and stop reading it; its state becomes ``ownership``."""
        self._context.poller.handled(shard.lose(ownership))
        self._context.poller.release(shard.partition, shard.topics)
        if not shard.added:
            self._context.handler.lost(shard.partition)


def pause(first: float, before: int) -> float:
    """Seconds until the next try: ``first``, doubled for each failure ``before``, up to ``MAX_BACKOFF_SECONDS``."""
    return min(first * 2.0 ** min(before, 10), MAX_BACKOFF_SECONDS)


def short(error: BaseException) -> str:
    """One line on an exception, without the type for ``Poison`` and ``Locked``."""
    return first_line(error) if isinstance(error, Poison | Locked) else kind_and_line(error)
