"""The worker of a service: takes shards over, handles their messages in transactions, looks at what is due."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import structlog
from confluent_kafka import KafkaException
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from retrofill.bus import metrics
from retrofill.bus.added import added_transaction, take_over_added
from retrofill.bus.crash import crash_point
from retrofill.bus.deaths import DEATHS, write_down
from retrofill.bus.envelope import Record
from retrofill.bus.faults import Fault, Fenced, Poison, classify
from retrofill.bus.handler import Handler, Hold, Received
from retrofill.bus.inbox import (
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
from retrofill.bus.poller import Poller, Rewind
from retrofill.bus.shard import Ownership, Shard
from retrofill.bus.shards import Shards
from retrofill.bus.takeover import Taken, TopicIds, take_over
from retrofill.bus.topics import Service
from retrofill.bus.transaction import Move, Transaction, move_offsets, shard_transaction
from retrofill.bus.triage import Dead, Misplaced, triage
from retrofill.errors import first_line, kind_and_line
from retrofill.settings import Settings

log = structlog.get_logger(__name__)
FLUSH_ENDS_SECONDS = 0.2
KAFKA_COMMIT_SECONDS = 1.0
LOOKS_A_PASS = 50
CONFLICTS_ALONE = 3
MAX_BACKOFF_SECONDS = 5.0


@dataclass(frozen=True)
class Work:
    """A batch after triage: the verdicts on its messages, and by topic how many items and up to which offset."""

    received: list[Received]
    misplaced: list[Misplaced]
    dead: list[Dead]
    moves: dict[str, Move]
    counts: dict[str, int]
    records: list[Record]


class Loop:
    """One instance of one service."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        instance: str,
        engine: Engine,
        inbox: Inbox,
        poller: Poller,
        handler: Handler,
        topic_ids: TopicIds,
        partitions: int,
    ) -> None:
        self._settings = settings
        self._service = service
        self._instance = instance
        self._engine = engine
        self._inbox = inbox
        self._poller = poller
        self._handler = handler
        self._topic_ids = topic_ids
        self._partitions = partitions
        self._shards = Shards(partitions, [str(topic) for topic in service.reads])
        self._stopping = False
        self._busy_since: float | None = None

    def busy_for(self) -> float:
        """Seconds that the worker's present step takes, 0 where it waits for something to do; from any thread.

        A pass over many shards, each of which waits for a server that is away, is many steps.
        """
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def owned(self) -> list[int]:
        """The shards that this instance owns; from any thread."""
        return self._shards.owned()

    def troubles(self) -> dict[str, str | None]:
        """What keeps shards from going on; from any thread."""
        return self._shards.troubles()

    def stop(self) -> None:
        """End ``run`` after what is being handled; a signal handler may call it."""
        self._stopping = True

    def run(self) -> None:
        """Work until stopped."""
        while not self._stopping:
            self._busy_since = None
            items = self._inbox.wait(self._seconds_to_next())
            self._progressed()
            for item in items:
                self._arrived(item)
            for shard in self._shards:
                if self._stopping:
                    break
                self._step(shard)

    def _progressed(self) -> None:
        self._busy_since = time.monotonic()

    # arriving

    def _arrived(self, item: Item) -> None:
        match item:
            case Records(items):
                self._queue(items)
            case Assigned(partitions):
                self._assigned(partitions)
            case Revoked(partitions):
                self._revoked(partitions)
            case Positioned(partition, ticket):
                if (shard := self._shards.seeking(partition, ticket)) is not None:
                    shard.ownership = Ownership.OWNED
                    shard.failures = 0
                    shard.retry_at = 0.0
            case NotPositioned(partition, ticket, detail):
                if (shard := self._shards.seeking(partition, ticket)) is not None:
                    shard.seek_again = True
                    self._back_off(shard, KafkaException(detail), "seek_waits")
            case OutOfRange(topic, partition, detail):
                self._out_of_range(topic, partition, detail)
            case Notified(channel, payload):
                self._notified(channel, payload)
            case _:
                pass

    def _queue(self, items: Sequence[Record | End]) -> None:
        stale = [i for i in items if not self._shards.at(i.topic, i.partition).add(i) and isinstance(i, Record)]
        self._poller.handled(i for i in stale if isinstance(i, Record))

    def _assigned(self, partitions: Sequence[tuple[str, int]]) -> None:
        for topic, partition in partitions:
            shard = self._shards.at(topic, partition)
            if topic == shard.topics[0] and shard.ownership is Ownership.PARTIAL:
                shard.ownership = Ownership.ASSIGNED
                shard.retry_at = 0.0

    def _revoked(self, partitions: Sequence[tuple[str, int]]) -> None:
        for topic, partition in partitions:
            shard = self._shards.at(topic, partition)
            if topic == shard.topics[0] and shard.ownership is not Ownership.PARTIAL:
                log.info("shard_revoked", shard=partition, epoch=shard.epoch)
                self._lose(shard, Ownership.PARTIAL)
            elif shard.ownership in (Ownership.SEEKING, Ownership.OWNED, Ownership.STOPPED):
                # The client does not read that topic any more: all of them again, from where Postgres is.
                self._lose(shard, Ownership.ASSIGNED)
                shard.retry_at = 0.0

    def _out_of_range(self, topic: str, partition: int, detail: str) -> None:
        shard = self._shards.at(topic, partition) if partition >= 0 else None
        if shard is None or shard.ownership is Ownership.STOPPED:
            return
        log.error(
            "shard_stopped",
            shard=partition,
            topic=topic,
            error=detail,
            stored_offset=shard.queues[topic].next_offset if topic in shard.queues else None,
            what_to_do=f"the stored offset is not in the topic: messages were deleted. Set next_offset in "
            f"{self._service.package}_shard_offset to where to go on, then restart the service",
        )
        self._lose(shard, Ownership.STOPPED)
        shard.trouble = f"{topic}: {detail}"

    def _notified(self, channel: str, payload: str) -> None:
        for partition, looks in self._handler.notified(channel, payload, self._shards.owned()).items():
            self._add_looks(self._shards[partition], looks)

    # one shard

    def _step(self, shard: Shard) -> None:
        now = time.monotonic()
        if shard.ownership in (Ownership.ASSIGNED, Ownership.FENCED) and shard.retry_at <= now:
            self._take_over(shard)
        if shard.seek_again and shard.retry_at <= now:
            self._rewind(shard)
        if shard.ownership is not Ownership.OWNED or shard.retry_at > now:
            return
        if shard.has_messages(now):
            self._run_batch(shard)
        elif shard.has_ends(now):
            self._record_ends(shard, now)
        if shard.ownership is Ownership.OWNED and shard.retry_at <= now:
            self._run_looks(shard)
        if shard.ownership is Ownership.OWNED:
            self._commit_to_kafka(shard)

    def _take_over(self, shard: Shard) -> None:
        self._progressed()
        try:
            if shard.ownership is Ownership.FENCED:
                # A take-over that was delayed must not leave nobody working, and one that was cut off must not take
                # turns with its successor: the coordinator's acceptance of a commit tells the two apart.
                self._poller.commit(shard.partition, shard.last_offsets, wait=True)
            taken = self._taken(shard)
        except (KafkaException, SQLAlchemyError, OSError) as e:
            self._back_off(shard, e, "take_over_waits")
            return
        shard.failures = 0
        shard.retry_at = 0.0
        shard.begin(taken.offsets, taken.epoch)
        shard.careful = self._settings.batch_messages if taken.careful else 0
        shard.suspect = taken.suspect
        self._add_looks(shard, taken.looks)
        self._rewind(shard)
        metrics.TAKEOVERS.labels("shard").inc()
        log.info("shard_taken", shard=shard.partition, epoch=taken.epoch, offsets=taken.offsets)

    def _taken(self, shard: Shard) -> Taken:
        if shard.added:
            return take_over_added(self._engine, self._service, shard.topics[0], shard.partition, self._topic_ids)
        return take_over(self._engine, self._service, shard.partition, self._instance, self._topic_ids, self._handler)

    def _rewind(self, shard: Shard) -> None:
        shard.seek_again = False
        self._poller.rewind(Rewind(shard.partition, shard.topics[0], shard.offsets, shard.ticket))

    def _run_batch(self, shard: Shard) -> None:
        self._progressed()
        now = time.monotonic()
        records: list[Record] = []
        began = time.monotonic()
        try:
            limit = 1 if shard.alone or shard.careful else self._settings.batch_messages
            items = list(shard.batch(limit, now))
            records = [item for item in items if isinstance(item, Record)]
            if shard.careful and records and self._has_killed(shard, records[0]):
                return
            work = self._triage(shard, items)
            work = self._without_held(shard, work, self._handler.admit(work.received))
            self._apply(shard, work)
        except Exception as e:  # noqa: BLE001 - every exception has a class: fence, conflict, poison or wait
            self._refused(shard, records, e)
            return
        if records:
            metrics.BATCH_SECONDS.observe(time.monotonic() - began)
        self._landed(shard, work)

    def _has_killed(self, shard: Shard, record: Record) -> bool:
        """Whether a message was set aside as one that ends its process; if not, it is written down as being tried."""
        deaths = shard.suspect.deaths if shard.suspect is not None and shard.suspect.is_of(record) else 0
        if deaths >= DEATHS:
            self._bury(shard, record, f"the process that handled it, and nothing else, ended {deaths} times")
            return True
        write_down(self._engine, self._service, shard.partition, shard.epoch, record, deaths)
        shard.trying = True
        return False

    def _survived(self, shard: Shard) -> None:
        """What was tried was not handled, and we are still here: who ends us now does not do so because of it."""
        if not shard.trying:
            return
        try:
            write_down(self._engine, self._service, shard.partition, shard.epoch, None)
            shard.trying = False
        except (Fenced, SQLAlchemyError, OSError) as e:
            # The successor's, or written down anew before the next try.
            log.info("try_not_taken_back", shard=shard.partition, error=_short(e))

    def _triage(self, shard: Shard, items: Sequence[Record | End]) -> Work:
        received: list[Received] = []
        misplaced: list[Misplaced] = []
        dead: list[Dead] = []
        for record in (item for item in items if isinstance(item, Record)):
            match triage(record, self._partitions, self._topic_ids.of(record.topic)):
                case Received() as one:
                    received.append(one)
                case Misplaced() as copy:
                    misplaced.append(copy)
                case Dead() as letter:
                    dead.append(letter)
                case (Misplaced() as copy, Received() as here):
                    misplaced.append(copy)
                    received.append(here)
        moves, counts = _progress(shard, items)
        return Work(received, misplaced, dead, moves, counts, [i for i in items if isinstance(i, Record)])

    def _without_held(self, shard: Shard, work: Work, holds: Mapping[str, Hold]) -> Work:
        """The batch cut before what has to wait, which stays queued."""
        if not holds:
            return work
        now = time.monotonic()
        items: list[Record | End] = []
        for topic, count in work.counts.items():
            queued = list(shard.queues[topic].items)[:count]
            if topic in holds:
                shard.queues[topic].held_until = now + holds[topic].seconds
                queued = [i for i in queued if i.offset < holds[topic].offset]
            items += queued
        return self._triage(shard, items)

    def _apply(self, shard: Shard, work: Work) -> None:
        if not work.records and all(move.old == move.new for move in work.moves.values()):
            return
        crash_point("batch:before-begin")
        with self._transaction(shard) as tx:
            crash_point("batch:begun")
            for letter in work.dead:
                tx.dead_letter(letter.record, letter.reason)
            for copy in work.misplaced:
                tx.republish(copy.record, copy.key, copy.ce_id)
            for one in work.received:
                crash_point(f"handle:{one.key}")
            if work.received:
                self._handler.handle(tx, work.received)
            move_offsets(tx.conn, self._service, shard.partition, work.moves)
            crash_point("batch:before-commit")
        crash_point("batch:committed")
        self._add_looks(shard, tx.looks)
        for topic, count in Counter(record.topic for record in work.records).items():
            metrics.MESSAGES.labels(topic).inc(count)
        for letter in work.dead:
            metrics.DEAD_LETTERS.labels(letter.record.topic).inc()
            log.warning("dead_letter", topic=letter.record.topic, offset=letter.record.offset, reason=letter.reason)

    def _landed(self, shard: Shard, work: Work) -> None:
        shard.failures = 0
        shard.conflicts = 0
        shard.retry_at = 0.0
        if shard.alone > 0:
            shard.alone -= 1
        if work.records:
            # What was written down is behind the offset now.
            shard.careful = max(0, shard.careful - 1)
            shard.trying = False
        self._survived(shard)
        handled = [
            record for topic, count in work.counts.items() for record in shard.done(topic, work.moves[topic].new, count)
        ]
        self._poller.handled(handled)
        shard.dirty = True
        shard.ends_since = None
        if not shard.added:
            self._handler.read_to(shard.partition, {topic: queue.read_to for topic, queue in shard.queues.items()})

    def _record_ends(self, shard: Shard, now: float) -> None:
        """Ends without messages are recorded a little later: one transaction for all that come in a row."""
        if shard.ends_since is None:
            shard.ends_since = now
        if now - shard.ends_since >= FLUSH_ENDS_SECONDS:
            self._run_batch(shard)

    def _run_looks(self, shard: Shard) -> None:
        due = list(self._handler.rank(shard.due_looks(time.monotonic())))[:LOOKS_A_PASS]
        for keys in self._handler.together(due):
            groups = [keys]
            while groups:
                group = groups.pop(0)
                error = self._look(shard, group)
                if error is None:
                    continue
                if len(group) == 1 or classify(error) in (Fault.FENCED, Fault.WAIT):
                    self._look_refused(shard, group, error)
                    return
                # One of them was refused: alone, the others are not kept from what is theirs.
                for key in group:
                    shard.look_at(key, 0.0)
                groups = [[key] for key in group]

    def _look(self, shard: Shard, keys: Sequence[str]) -> Exception | None:
        """Look at ``keys`` in one transaction; why it was refused, or ``None``."""
        self._progressed()
        began = time.monotonic()
        for key in keys:
            shard.looks.pop(key, None)
            crash_point(f"look:before-begin:{key}")
        tx: Transaction | None = None
        try:
            with self._transaction(shard) as tx:
                crash_point("look:begun")
                self._handler.look_at_all(tx, keys)
                crash_point("look:before-commit")
            crash_point("look:committed")
        except Exception as e:  # noqa: BLE001 - classified by the caller; a look is never lost
            if tx is not None and classify(e) is Fault.WAIT:
                # It may have committed, and only the answer was lost: then nobody else looks where it asked to. A batch
                # finds that out by its offsets.
                self._add_looks(shard, tx.looks)
            return e
        metrics.LOOK_SECONDS.observe(time.monotonic() - began)
        shard.failures = 0
        self._add_looks(shard, tx.looks)
        return None

    def _transaction(self, shard: Shard) -> AbstractContextManager[Transaction]:
        limit = self._settings.max_message_bytes
        if shard.added:
            return added_transaction(self._engine, self._service, shard.partition, limit)
        return shard_transaction(self._engine, self._service, shard.partition, shard.epoch, limit)

    # refusals

    def _refused(self, shard: Shard, records: Sequence[Record], error: Exception) -> None:
        fault = classify(error)
        metrics.RETRIES.labels("batch", fault.value).inc()
        self._survived(shard)
        if fault is Fault.FENCED:
            self._fenced(shard, error)
        elif fault is Fault.WAIT:
            self._back_off(shard, error, "batch_waits")
        elif len(records) > 1:
            shard.conflicts += 1
            # A conflict is decided again at once; one that stays, and poison, is found by handling one by one.
            if fault in (Fault.POISON, Fault.TIMEOUT) or shard.conflicts >= CONFLICTS_ALONE:
                shard.conflicts = 0
                shard.alone = len(records)
            log.info("batch_again", shard=shard.partition, fault=fault.value, error=_short(error))
        elif not records:
            self._back_off(shard, error, "batch_waits")
        elif fault is Fault.POISON or self._conflicts_for_ever(shard):
            self._bury(shard, records[0], _short(error))
        else:
            log.info("message_again", shard=shard.partition, fault=fault.value, error=_short(error))

    def _conflicts_for_ever(self, shard: Shard) -> bool:
        """Whether the same message alone has failed three times while the database answers others."""
        shard.conflicts += 1
        if shard.conflicts < CONFLICTS_ALONE:
            return False
        try:
            with self._engine.connect() as conn:
                conn.execute(text("SELECT 1"))
        except SQLAlchemyError as e:
            self._back_off(shard, e, "batch_waits")
            return False
        return True

    def _bury(self, shard: Shard, record: Record, reason: str) -> None:
        """The dead letter of one message, and its offset."""
        items = [i for i in shard.queues[record.topic].items if i.offset <= record.offset]
        moves, counts = _progress(shard, items)
        work = Work([], [], [Dead(record, reason)], moves, counts, [record])
        shard.conflicts = 0
        try:
            self._apply(shard, work)
        except Exception as e:  # noqa: BLE001 - classified; the message is still there and is found again
            if classify(e) is Fault.FENCED:
                self._fenced(shard, e)
            else:
                self._back_off(shard, e, "batch_waits")
            return
        self._landed(shard, work)

    def _look_refused(self, shard: Shard, keys: Sequence[str], error: Exception) -> None:
        fault = classify(error)
        metrics.RETRIES.labels("look", fault.value).inc()
        if fault is Fault.FENCED:
            self._fenced(shard, error)
            return
        now = time.monotonic()
        again = {Fault.WAIT: 0.0, Fault.CONFLICT: now + 0.02}.get(fault, now + MAX_BACKOFF_SECONDS)
        for key in keys:
            shard.look_at(key, again)
        if fault is Fault.WAIT:
            self._back_off(shard, error, "look_waits")
        elif fault is Fault.CONFLICT:
            log.info("look_again", shard=shard.partition, looks=list(keys), error=_short(error))
        else:
            log.error("look_failed", shard=shard.partition, looks=list(keys), exc_info=error)

    def _fenced(self, shard: Shard, error: Exception) -> None:
        metrics.FENCES.labels("shard").inc()
        log.warning("fenced", shard=shard.partition, epoch=shard.epoch, error=_short(error))
        shard.last_offsets = shard.offsets
        self._lose(shard, Ownership.FENCED)
        shard.retry_at = 0.0

    def _back_off(self, shard: Shard, error: BaseException, event: str) -> None:
        shard.failures += 1
        shard.trouble = _short(error)
        seconds = min(0.05 * 2 ** min(shard.failures, 10), MAX_BACKOFF_SECONDS)
        shard.retry_at = time.monotonic() + seconds
        log.warning(event, shard=shard.partition, seconds=seconds, error=_short(error))

    def _lose(self, shard: Shard, ownership: Ownership) -> None:
        self._poller.handled(shard.lose(ownership))
        self._poller.release(shard.partition, shard.topics)
        if not shard.added:
            self._handler.lost(shard.partition)

    # small things

    def _add_looks(self, shard: Shard, looks: Mapping[str, float]) -> None:
        now = time.monotonic()
        for key, after in looks.items():
            shard.look_at(key, now + after)

    def _commit_to_kafka(self, shard: Shard) -> None:
        """Kafka's own committed offsets, for lag tools only."""
        now = time.monotonic()
        if shard.dirty and now - shard.committed_at >= KAFKA_COMMIT_SECONDS:
            shard.committed_at = now
            shard.dirty = False
            try:
                self._poller.commit(shard.partition, shard.offsets, wait=False)
            except KafkaException as e:
                log.debug("kafka_commit_refused", shard=shard.partition, error=str(e))

    def _seconds_to_next(self) -> float | None:
        dues = [due for s in self._shards if (due := s.next_due(FLUSH_ENDS_SECONDS)) is not None]
        dues += [s.committed_at + KAFKA_COMMIT_SECONDS for s in self._shards if s.dirty]
        return max(0.0, min(dues) - time.monotonic()) if dues else None


def _progress(shard: Shard, items: Sequence[Record | End]) -> tuple[dict[str, Move], dict[str, int]]:
    """By topic: the offset after ``items``, and how many of them there are."""
    moves: dict[str, Move] = {}
    counts: dict[str, int] = {}
    for item in items:
        old = shard.queues[item.topic].next_offset
        new = item.offset + 1 if isinstance(item, Record) else item.offset
        reached = moves[item.topic].new if item.topic in moves else old
        moves[item.topic] = Move(item.topic, old, max(new, reached))
        counts[item.topic] = counts.get(item.topic, 0) + 1
    return moves, counts


def _short(error: BaseException) -> str:
    """One line of an exception; a poison's own words need no type."""
    return first_line(error) if isinstance(error, Poison) else kind_and_line(error)
