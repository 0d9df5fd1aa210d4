"""Decides when a pipeline is really unknown: once the planners have read ``pipelines`` up to its
end as of the request's arrival."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import Connection, select

from retrofill.log import get_log
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.takeover import TopicIds
from retrofill_core.contract.topics import PLANNER, Topic
from retrofill_core.store.tables import SERVICE_TABLES

log = get_log(__name__)
# How often the log says that a request still waits.
LOG_SECONDS = 5.0


@dataclass
class _Target:
    """What must be read before a request is refused: offsets of ``pipelines`` by partition."""

    offset: int  # of the request
    ends: dict[int, int]
    logged_at: float  # monotonic; at first, when it began to wait


class PipelinesBarrier:
    """For the held request of each partition, the ends of ``pipelines`` after its arrival."""

    def __init__(self, topic_ids: TopicIds) -> None:
        self._topic_ids = topic_ids
        self._targets: dict[tuple[str, int], _Target] = {}

    def as_of(self, conn: Connection, record: Record) -> bool:
        """Whether the planners have read ``pipelines`` to its end as of ``record``'s first call.

        Raises ``KafkaException`` if the broker does not answer; the request then waits.
        """
        place = (record.topic, record.partition)
        target = self._targets.get(place)
        if target is None or target.offset != record.offset:
            # Refreshed each time, so partitions added to the topic count too.
            partitions = range(self._topic_ids.refresh()[Topic.PIPELINES])
            ends = self._topic_ids.ends.high_watermarks({str(Topic.PIPELINES): list(partitions)})
            targets = {partition: offset for (_, partition), offset in ends.items() if offset > 0}
            target = self._targets[place] = _Target(record.offset, targets, time.monotonic())
        offset = SERVICE_TABLES[PLANNER.package].offset
        rows = conn.execute(
            select(offset.c.partition, offset.c.next_offset).where(offset.c.topic == str(Topic.PIPELINES))
        ).all()
        read = dict(rows)
        if unread := sorted(p for p, end in target.ends.items() if read.get(p, 0) < end):
            if time.monotonic() - target.logged_at >= LOG_SECONDS:
                target.logged_at = time.monotonic()
                where = {"topic": record.topic, "shard": record.partition, "offset": record.offset}
                log.warning("request_waits_for_pipelines", **where, unread_partitions=unread)
            return False
        del self._targets[place]
        return True

    def forget(self, partition: int) -> None:
        """Forget the requests of a shard that was lost."""
        self._targets = {place: target for place, target in self._targets.items() if place[1] != partition}
