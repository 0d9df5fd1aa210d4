"""Handles a shard that cannot continue: back off, give it up as fenced, or lose it."""

from __future__ import annotations

import time

from retrofill.errors import first_line, kind_and_line
from retrofill.log import get_log
from retrofill_core.bus import metrics
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Locked, Poison
from retrofill_core.bus.worker.context import WorkerContext
from retrofill_core.bus.worker.shard import Ownership, Shard

log = get_log(__name__)
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
