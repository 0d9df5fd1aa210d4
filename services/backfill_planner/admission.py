"""Limits how much of a batch one step takes on, and decides when a pipeline is really unknown: once the planners
have read ``pipelines`` up to its end as of the request's arrival.

The rest of a batch waits for the next step, so neither memory nor time of a step grows with the batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from backfill_planner.requests import KnownIntervals
from retrofill.log import get_log
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.handler import Hold, Received
from retrofill_core.bus.service import Context
from retrofill_core.bus.takeover import TopicIds
from retrofill_core.contract.backfills import BackfillRequested, BackfillUndoRequested, RunRetryRequested
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import PLANNER, Topic
from retrofill_core.store import pipelines
from retrofill_core.store.engine import reading
from retrofill_core.store.pipelines import StoredPipeline
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


HOLD_SECONDS = 0.1
# A step whose intervals took this long to compute ends. Those of one request take a few seconds at most.
STEP_SECONDS = 1.0
# A definition of a megabyte takes ten in memory.
MOST_PIPELINES = 16
NEXT_STEP = 0.0


class Admission:
    """Decides how much of each batch is handled now, and computes the intervals for that."""

    def __init__(self, context: Context, intervals: KnownIntervals, barrier: PipelinesBarrier) -> None:
        self._context = context
        self._intervals = intervals
        self._barrier = barrier

    def admit(self, received: Sequence[Received]) -> Mapping[str, Hold]:
        """Hold what exceeds a step, and requests for pipelines not known yet."""
        self._intervals.forget()
        large = [one for one in received if _may_be_large(one)]
        if not large:
            return {}
        applied = {one.key for one in received if isinstance(one.message, PipelineApplied)}
        began, alone = time.monotonic(), False
        # Computing must not happen within a transaction, which Postgres ends when it is idle for long.
        with reading(self._context.engine) as conn:
            stored = _first_pipelines(conn, large)
            for number, one in enumerate(large):
                body = one.message if isinstance(one.message, BackfillRequested) else None
                # How many runs the others write is not known here. Nor is the definition, if it is in this batch.
                before, alone = alone, body is None or body.pipeline in applied
                late = time.monotonic() - began > STEP_SECONDS
                if number and (before or alone or late):
                    return _hold(one, NEXT_STEP)
                seconds = None if body is None else self._wait(conn, one, body, stored, applied)
                if seconds is not None:
                    return _hold(one, seconds)
        return {}

    def _wait(
        self,
        conn: Connection,
        one: Received,
        body: BackfillRequested,
        stored: Mapping[str, StoredPipeline | None],
        applied: set[str],
    ) -> float | None:
        """How long a request waits; ``None`` if this step plans it."""
        if body.pipeline not in stored:
            return NEXT_STEP
        pipeline = stored[body.pipeline]
        if pipeline is not None:
            return None if self._intervals.add(pipeline, body) else NEXT_STEP
        return None if body.pipeline in applied or self._barrier.as_of(conn, one.record) else HOLD_SECONDS


def _may_be_large(one: Received) -> bool:
    """Whether the message may write any number of runs."""
    match one.message:
        case BackfillRequested() | BackfillUndoRequested():
            return True
        case RunRetryRequested(all_failed=all_failed):
            return all_failed
    return False


def _first_pipelines(conn: Connection, large: Sequence[Received]) -> Mapping[str, StoredPipeline | None]:
    """The first pipelines that are requested; ``None`` for one that is not stored."""
    names = dict.fromkeys(one.message.pipeline for one in large if isinstance(one.message, BackfillRequested))
    first = list(names)[:MOST_PIPELINES]
    stored = pipelines.find(conn, first) if first else {}
    return {name: stored.get(name) for name in first}


def _hold(one: Received, seconds: float) -> Mapping[str, Hold]:
    return {one.record.topic: Hold(one.record.offset, seconds)}
