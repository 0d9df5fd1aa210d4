"""A service's worker loop: applies the inbox to the shards, takes them over, runs their batches and due checks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from confluent_kafka import KafkaException
from sqlalchemy.exc import SQLAlchemyError

from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Fault, classify, needing_rows
from retrofill_core.bus.inbox import (
    Assigned,
    End,
    Inbox,
    Item,
    Notified,
    NotPositioned,
    OutOfRange,
    Positioned,
    Records,
    Revoked,
)
from retrofill_core.bus.poller import Rewind
from retrofill_core.bus.takeover import Takeover, take_over, take_over_added
from retrofill_core.bus.transaction import Transaction
from retrofill_core.bus.worker.batches import FLUSH_ENDS_SECONDS, Batches
from retrofill_core.bus.worker.context import MAX_BACKOFF_SECONDS, Failures, WorkerContext, pause, short
from retrofill_core.bus.worker.shard import Ownership, Shard

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


CHECKS_PER_PASS = 50
CONFLICT_SECONDS = 0.02
LOCKED_SECONDS = 0.5


class Checks:
    """The checks of one worker's shards."""

    def __init__(self, context: WorkerContext, failures: Failures) -> None:
        self._context = context
        self._failures = failures

    def run(self, shard: Shard) -> None:
        """Run due checks, at most ``CHECKS_PER_PASS`` keys, grouped by the handler."""
        for group in self._due(shard):
            error = self._run(shard, group)
            if error is None:
                continue
            if len(group) == 1 or classify(error) in (Fault.FENCED, Fault.WAIT):
                self._refused(shard, group, error)
                return
            # Check each key alone, so that the one at fault does not block the others.
            for key in group:
                shard.schedule_check(key, 0.0)
            for key in group:
                error = self._run(shard, [key])
                if error is not None:
                    self._refused(shard, [key], error)
                    return

    def _due(self, shard: Shard) -> Iterator[Sequence[str]]:
        left = CHECKS_PER_PASS
        for group in self._context.handler.group(shard.due_checks(time.monotonic())):
            if chosen := group[:left]:
                yield chosen
            left -= len(chosen)

    def _run(self, shard: Shard, keys: Sequence[str]) -> Exception | None:
        """Check ``keys`` in one transaction; returns its exception, or ``None`` if it committed."""
        self._context.progressed()
        began = time.monotonic()
        for key in keys:
            shard.checks.pop(key, None)
            crash_point(f"check:before-begin:{key}")
        tx: Transaction | None = None
        try:
            with self._context.transaction(shard) as tx:
                crash_point("check:begun")
                with needing_rows():
                    self._context.handler.check(tx, keys)
                crash_point("check:before-commit")
            crash_point("check:committed")
        except Exception as e:  # noqa: BLE001 - classified by the caller; a check is never lost
            if tx is not None and classify(e) is Fault.WAIT:
                # It may have committed with the reply lost; then only we know of the checks that it
                # scheduled. (A batch detects this case by its offsets.)
                self._context.schedule_checks(shard, tx.checks)
            return e
        metrics.CHECK_SECONDS.observe(time.monotonic() - began)
        shard.failures = 0
        for key in keys:
            shard.conflicting_checks.pop(key, None)
        self._context.schedule_checks(shard, tx.checks)
        return None

    def _refused(self, shard: Shard, keys: Sequence[str], error: Exception) -> None:
        fault = classify(error)
        metrics.RETRIES.labels("check", fault.value).inc()
        if fault is Fault.FENCED:
            self._failures.fenced(shard, error)
            return
        now = time.monotonic()
        for key in keys:
            shard.schedule_check(key, now + self._pause(shard, key, fault))
        if fault is Fault.WAIT:
            self._failures.back_off(shard, error, "check_waits")
        elif fault is Fault.LOCKED:
            log.warning("check_waits", shard=shard.partition, checks=list(keys), error=short(error))
        elif fault is Fault.CONFLICT:
            log.info("check_again", shard=shard.partition, checks=list(keys), error=short(error))
        else:
            log.error("check_failed", shard=shard.partition, checks=list(keys), exc_info=error)

    def _pause(self, shard: Shard, key: str, fault: Fault) -> float:
        """Seconds until a refused key is checked again; grows for a conflict or a lock that persists."""
        if fault is Fault.WAIT:
            return 0.0
        if fault not in (Fault.CONFLICT, Fault.LOCKED):
            return MAX_BACKOFF_SECONDS
        before = shard.conflicting_checks.get(key, 0)
        shard.conflicting_checks[key] = before + 1
        first = CONFLICT_SECONDS if fault is Fault.CONFLICT else LOCKED_SECONDS
        return pause(first, before)


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
