"""A service's worker loop: takes shards over and runs their batches and checks."""

from __future__ import annotations

import time

from confluent_kafka import KafkaException
from sqlalchemy.exc import SQLAlchemyError

from retrofill.log import get_log
from retrofill_core.bus.inbox import Inbox
from retrofill_core.bus.observability import metrics
from retrofill_core.bus.poller import Rewind
from retrofill_core.bus.takeover import Takeover, take_over
from retrofill_core.bus.worker.added import take_over_added
from retrofill_core.bus.worker.batches import FLUSH_ENDS_SECONDS, Batches
from retrofill_core.bus.worker.checks import Checks
from retrofill_core.bus.worker.context import WorkerContext
from retrofill_core.bus.worker.failures import Failures
from retrofill_core.bus.worker.intake import Intake
from retrofill_core.bus.worker.shard import Ownership, Shard

log = get_log(__name__)
KAFKA_COMMIT_SECONDS = 1.0


class Loop:
    """The worker of one service instance."""

    def __init__(self, context: WorkerContext, inbox: Inbox) -> None:
        self._context = context
        self._inbox = inbox
        self._failures = Failures(context)
        self._intake = Intake(context, self._failures)
        self._batches = Batches(context, self._failures)
        self._checks = Checks(context, self._failures)
        self._stopping = False

    def busy_for(self) -> float:
        """Seconds since the current step began, 0 while idle; from any thread.

        A pass over many shards that each wait for an unavailable server is many steps.
        """
        since = self._context.busy_since
        return 0.0 if since is None else time.monotonic() - since

    def owned(self) -> list[int]:
        """Partitions of the shards that this instance owns; from any thread."""
        return self._context.shards.owned()

    def shards_by_state(self) -> dict[str, int]:
        """The number of shards that are assigned to this instance, by state; from any thread."""
        return self._context.shards.by_state()

    def problems(self) -> dict[str, str | None]:
        """Why shards cannot continue, for readiness; from any thread."""
        return self._context.shards.problems()

    def stop(self) -> None:
        """End ``run`` after the current step; a signal handler may call it."""
        self._stopping = True

    def run(self) -> None:
        """Work until ``stop``."""
        while not self._stopping:
            self._context.busy_since = None
            items = self._inbox.wait(self._seconds_to_next())
            self._context.progressed()
            for item in items:
                self._intake.take(item)
            for shard in self._context.shards:
                if self._stopping:
                    break
                self._step(shard)

    def _step(self, shard: Shard) -> None:
        now = time.monotonic()
        if shard.ownership in (Ownership.ASSIGNED, Ownership.FENCED) and shard.retry_at <= now:
            self._take_over(shard)
        if shard.seek_again and shard.retry_at <= now:
            self._rewind(shard)
        if shard.ownership is not Ownership.OWNED or shard.retry_at > now:
            return
        if shard.has_messages(now):
            self._batches.run(shard)
        elif shard.has_ends(now):
            self._batches.record_ends(shard, now)
        if shard.ownership is Ownership.OWNED and shard.retry_at <= now:
            self._checks.run(shard)
        if shard.ownership is Ownership.OWNED:
            self._commit_to_kafka(shard)

    def _take_over(self, shard: Shard) -> None:
        self._context.progressed()
        try:
            if shard.ownership is Ownership.FENCED:
                # An owner whose takeover was merely delayed must continue; one that was cut off
                # must not alternate with its successor. Only the former can commit an offset.
                self._context.poller.commit(shard.partition, shard.last_offsets, wait=True)
            taken = self._taken(shard)
        except (KafkaException, SQLAlchemyError, OSError) as e:
            self._failures.back_off(shard, e, "take_over_waits")
            return
        shard.failures = 0
        shard.retry_at = 0.0
        shard.begin(taken.offsets, taken.epoch)
        shard.careful = self._context.settings.batch_messages if taken.careful else 0
        shard.suspect = taken.suspect
        self._context.schedule_checks(shard, taken.checks)
        self._rewind(shard)
        metrics.TAKEOVERS.labels("shard").inc()
        log.info("shard_taken", shard=shard.partition, epoch=taken.epoch, offsets=taken.offsets)

    def _taken(self, shard: Shard) -> Takeover:
        own = self._context
        if shard.added:
            return take_over_added(own.engine, own.service, shard.topics[0], shard.partition, own.topic_ids)
        return take_over(own.engine, own.service, shard.partition, own.instance, own.topic_ids, own.handler)

    def _rewind(self, shard: Shard) -> None:
        shard.seek_again = False
        self._context.poller.rewind(Rewind(shard.partition, shard.topics[0], shard.offsets, shard.ticket))

    def _commit_to_kafka(self, shard: Shard) -> None:
        """Write Kafka's own committed offsets, for lag tools only."""
        now = time.monotonic()
        if shard.dirty and now - shard.committed_at >= KAFKA_COMMIT_SECONDS:
            shard.committed_at = now
            shard.dirty = False
            try:
                self._context.poller.commit(shard.partition, shard.offsets, wait=False)
            except KafkaException as e:
                log.debug("kafka_commit_refused", shard=shard.partition, error=str(e))

    def _seconds_to_next(self) -> float | None:
        dues = [due for s in self._context.shards if (due := s.next_due(FLUSH_ENDS_SECONDS)) is not None]
        dues += [s.committed_at + KAFKA_COMMIT_SECONDS for s in self._context.shards if s.dirty]
        return max(0.0, min(dues) - time.monotonic()) if dues else None
