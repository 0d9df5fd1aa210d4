"""State that the parts of one worker share: connections, shards, the current step's start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from sqlalchemy import Engine

from retrofill_core.bus.envelope import Record
from retrofill_core.bus.handler import Handler
from retrofill_core.bus.poller import Poller
from retrofill_core.bus.takeover import TopicIds
from retrofill_core.bus.transaction import Transaction, shard_transaction
from retrofill_core.bus.worker.added import added_transaction, record_added_try
from retrofill_core.bus.worker.deaths import record_try
from retrofill_core.bus.worker.shard import Shard
from retrofill_core.bus.worker.shards import Shards
from retrofill_core.contract.topics import Service
from retrofill_core.settings import Settings


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
