"""Applies inbox items from Kafka and Postgres to the shards."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException

from retrofill.log import get_log
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.inbox import (
    Assigned,
    End,
    Item,
    Notified,
    NotPositioned,
    OutOfRange,
    Positioned,
    Records,
    Revoked,
)
from retrofill_core.bus.worker.context import WorkerContext
from retrofill_core.bus.worker.failures import Failures
from retrofill_core.bus.worker.shard import Ownership

log = get_log(__name__)


class Intake:
    """The intake of one worker."""

    def __init__(self, context: WorkerContext, failures: Failures) -> None:
        self._context = context
        self._failures = failures

    def take(self, item: Item) -> None:
        """Apply one item of the inbox to the shards."""
        match item:
            case Records(items):
                self._queue(items)
            case Assigned(partitions):
                self._assigned(partitions)
            case Revoked(partitions):
                self._revoked(partitions)
            case Positioned(partition, ticket):
                if (shard := self._context.shards.seeking(partition, ticket)) is not None:
                    shard.ownership = Ownership.OWNED
                    shard.failures = 0
                    shard.retry_at = 0.0
            case NotPositioned(partition, ticket, detail):
                if (shard := self._context.shards.seeking(partition, ticket)) is not None:
                    shard.seek_again = True
                    self._failures.back_off(shard, KafkaException(detail), "seek_waits")
            case OutOfRange(topic, partition, detail):
                self._out_of_range(topic, partition, detail)
            case Notified(channel, payload):
                self._notified(channel, payload)
            case _:
                pass

    def _queue(self, items: Sequence[Record | End]) -> None:
        stale = [i for i in items if not self._context.shards.at(i.topic, i.partition).add(i) and isinstance(i, Record)]
        self._context.poller.handled(i for i in stale if isinstance(i, Record))

    def _assigned(self, partitions: Sequence[tuple[str, int]]) -> None:
        for topic, partition in partitions:
            shard = self._context.shards.at(topic, partition)
            if topic == shard.topics[0] and shard.ownership is Ownership.PARTIAL:
                shard.ownership = Ownership.ASSIGNED
                shard.retry_at = 0.0

    def _revoked(self, partitions: Sequence[tuple[str, int]]) -> None:
        for topic, partition in partitions:
            shard = self._context.shards.at(topic, partition)
            if topic == shard.topics[0] and shard.ownership is not Ownership.PARTIAL:
                log.info("shard_revoked", shard=partition, epoch=shard.epoch)
                self._failures.lose(shard, Ownership.PARTIAL)
            elif shard.ownership in (Ownership.SEEKING, Ownership.OWNED, Ownership.STOPPED):
                # The client no longer reads that topic: reposition all of them.
                self._failures.lose(shard, Ownership.ASSIGNED)
                shard.retry_at = 0.0

    def _out_of_range(self, topic: str, partition: int, detail: str) -> None:
        shard = self._context.shards.at(topic, partition) if partition >= 0 else None
        if shard is None or shard.ownership is Ownership.STOPPED:
            return
        log.error(
            "shard_stopped",
            shard=partition,
            topic=topic,
            error=detail,
            stored_offset=shard.queues[topic].next_offset if topic in shard.queues else None,
            what_to_do=f"the stored offset is no longer in the topic: messages were deleted. Set next_offset in "
            f"{self._context.service.package}_shard_offset to the offset to resume from, then restart the service",
        )
        self._failures.lose(shard, Ownership.STOPPED)
        shard.problem = f"{topic}: {detail}"

    def _notified(self, channel: str, payload: str) -> None:
        for partition, checks in self._context.handler.notified(channel, payload, self._context.shards.owned()).items():
            self._context.schedule_checks(self._context.shards[partition], checks)
