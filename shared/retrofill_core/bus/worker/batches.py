"""Handles messages in batches, one transaction each; isolates the one that fails a batch.

Before a handler sees a message, it is classified, without I/O: readable, misplaced, or a dead letter.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.envelope import BAD_NAME, ID_NAMESPACE, MAX_HEADER_BYTES, Record, header_bytes
from retrofill_core.bus.faults import Fault, Fenced, classify, needing_rows
from retrofill_core.bus.handler import Hold, Received
from retrofill_core.bus.inbox import End
from retrofill_core.bus.takeover import DEATHS
from retrofill_core.bus.transaction import Move, Transaction, move_offsets
from retrofill_core.bus.worker.context import Failures, WorkerContext, short
from retrofill_core.bus.worker.shard import Shard
from retrofill_core.contract.base import Undecodable, decode, decode_object
from retrofill_core.contract.topics import COMPACTED, REPUBLISHED, Topic, partition_of

MAX_KEY = 200


@dataclass(frozen=True)
class Dead:
    """A message that cannot be read, and why."""

    record: Record
    reason: str


@dataclass(frozen=True)
class Misplaced:
    """A message to republish under ``key``, to its owner's partition."""

    record: Record
    key: str
    ce_id: str


Verdict = Received | Misplaced | Dead | tuple[Misplaced, Received]


def triage(record: Record, partitions: int, topic_id: str) -> Verdict:
    """Classify one message. ``topic_id`` is Kafka's, so derived ids differ in a recreated topic."""
    derived = record.ce_id or str(uuid.uuid5(ID_NAMESPACE, f"{topic_id}:{record.partition}:{record.offset}"))
    try:
        if record.bad_header == BAD_NAME:
            raise Undecodable("the name of a header is not UTF-8, so no header could be read")
        if record.bad_header is not None:
            raise Undecodable(f"the header {record.bad_header!r} is not UTF-8")
        if "\0" in (record.ce_id or ""):
            raise Undecodable("the header 'ce_id' holds a NUL character, which the database cannot store")
        if (size := header_bytes(record.raw_headers)) > MAX_HEADER_BYTES:
            raise Undecodable(f"the headers have {size:,} bytes, more than {MAX_HEADER_BYTES:,}")
        key = read_key(record)
        if key is None:
            return Misplaced(record, _fresh_id(record, derived), derived)
        elsewhere = partition_of(key, partitions) != record.partition
        if elsewhere and record.topic not in REPUBLISHED:
            # Its reader may not write to this topic, and services always use the right partition.
            raise Undecodable("the partition does not match the key: no Retrofill service wrote this message")
        if elsewhere and record.topic not in COMPACTED:
            return Misplaced(record, key, derived)
        if record.value is None and record.topic in COMPACTED:
            message = None
        else:
            message = decode(record.value, record.headers.get("ce_type"))
    except Undecodable as e:
        return Dead(record, str(e))
    received = Received(record, key, message, derived, misplaced=elsewhere)
    return (Misplaced(record, key, derived), received) if elsewhere else received


def read_key(record: Record) -> str | None:
    """The key; ``None`` for a request without one, which gets a new id. Raises ``Undecodable``."""
    try:
        key = (record.key or b"").decode("utf-8")
    except UnicodeDecodeError as e:
        raise Undecodable("the key is not UTF-8") from e
    if not key:
        if record.topic == Topic.BACKFILL_REQUESTS:
            return None
        raise Undecodable("the message has no key")
    if not _is_id(key):
        raise Undecodable(f"invalid key: use 1 to {MAX_KEY} printable characters")
    return key


def _fresh_id(record: Record, derived: str) -> str:
    """The id for a request without a key: the ``id`` in its body, or else its ``ce_id``.

    The republished message must have a valid key, so an invalid id is replaced by a derived one.
    """
    if record.value is None:
        raise Undecodable("the value is null")
    named = decode_object(record.value).get("id")
    for id in (named, derived):
        if isinstance(id, str) and id and _is_id(id):
            return id
    return str(uuid.uuid5(ID_NAMESPACE, derived))


def _is_id(text: str) -> bool:
    return len(text) <= MAX_KEY and text.isprintable()


log = get_log(__name__)
FLUSH_ENDS_SECONDS = 0.2
CONFLICTS_ALONE = 3


@dataclass(frozen=True)
class Work:
    """A batch after triage: messages by verdict; offset moves and item counts by topic."""

    received: list[Received]
    misplaced: list[Misplaced]
    dead: list[Dead]
    moves: dict[str, Move]
    counts: dict[str, int]
    records: list[Record]


class Batches:
    """The batches of one worker's shards."""

    def __init__(self, context: WorkerContext, failures: Failures) -> None:
        self._context = context
        self._failures = failures

    def run(self, shard: Shard) -> None:
        """Handle the shard's next messages in one transaction."""
        self._context.progressed()
        now = time.monotonic()
        records: list[Record] = []
        began = time.monotonic()
        try:
            limit = 1 if shard.alone or shard.careful else self._context.settings.batch_messages
            items = list(shard.batch(limit, now))
            records = [item for item in items if isinstance(item, Record)]
            if shard.careful and records and self._set_aside_killer(shard, records[0]):
                return
            work = self._triage(shard, items)
            work = self._without_held(shard, work, self._context.handler.admit(work.received))
            self._apply(shard, work)
        except Exception as e:  # noqa: BLE001 - every exception has a class: fence, conflict, poison or wait
            self._refused(shard, records, e)
            return
        if records:
            metrics.BATCH_SECONDS.observe(time.monotonic() - began)
        self._landed(shard, work)

    def record_ends(self, shard: Shard, now: float) -> None:
        """Record ends without messages, in one transaction per ``FLUSH_ENDS_SECONDS``."""
        if shard.ends_since is None:
            shard.ends_since = now
        if now - shard.ends_since >= FLUSH_ENDS_SECONDS:
            self.run(shard)

    def _set_aside_killer(self, shard: Shard, record: Record) -> bool:
        """Set ``record`` aside if it killed too many processes, else record that it is tried."""
        deaths = shard.suspect.deaths if shard.suspect is not None and shard.suspect.matches(record) else 0
        if deaths >= DEATHS:
            self._set_aside(shard, record, f"the process died {deaths} times while handling only this message")
            return True
        self._context.record_try(shard, record, deaths)
        shard.trying = True
        return False

    def _survived(self, shard: Shard) -> None:
        """Withdraw the record of a try: a later death is not this message's fault."""
        if not shard.trying:
            return
        try:
            self._context.record_try(shard, None)
            shard.trying = False
        except (Fenced, SQLAlchemyError, OSError) as e:
            # The shard has a new owner, or the record is replaced before the next try.
            log.info("try_not_taken_back", shard=shard.partition, error=short(e))

    def _triage(self, shard: Shard, items: Sequence[Record | End]) -> Work:
        received: list[Received] = []
        misplaced: list[Misplaced] = []
        dead: list[Dead] = []
        for record in (item for item in items if isinstance(item, Record)):
            match triage(record, self._context.partitions, self._context.topic_ids.of(record.topic)):
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
        """The batch without held messages, which stay queued."""
        if not holds:
            return work
        now = time.monotonic()
        items: list[Record | End] = []
        for topic, count in work.counts.items():
            queued = list(shard.queues[topic].items)[:count]
            if topic in holds:
                shard.queues[topic].hold(now + holds[topic].seconds)
                queued = [i for i in queued if i.offset < holds[topic].offset]
            items += queued
        return self._triage(shard, items)

    def _apply(self, shard: Shard, work: Work) -> None:
        if not work.records and all(move.old == move.new for move in work.moves.values()):
            return
        crash_point("batch:before-begin")
        with self._context.transaction(shard) as tx:
            crash_point("batch:begun")
            for letter in work.dead:
                tx.dead_letter(letter.record, letter.reason)
                self._buried(tx, letter)
            for copy in work.misplaced:
                tx.republish(copy.record, copy.key, copy.ce_id)
            for one in work.received:
                crash_point(f"handle:{one.key}")
            if work.received:
                with needing_rows():
                    self._context.handler.handle(tx, work.received)
            move_offsets(tx.conn, self._context.service, shard.partition, work.moves)
            crash_point("batch:before-commit")
        crash_point("batch:committed")
        self._context.schedule_checks(shard, tx.checks)
        for topic, count in Counter(record.topic for record in work.records).items():
            metrics.MESSAGES.labels(topic).inc(count)
        for letter in work.dead:
            metrics.DEAD_LETTERS.labels(letter.record.topic).inc()
            log.warning("dead_letter", topic=letter.record.topic, offset=letter.record.offset, reason=letter.reason)

    def _buried(self, tx: Transaction, letter: Dead) -> None:
        """Tell the handler. Its data may be as bad as the letter's, which must not stay for that."""
        try:
            with needing_rows(), tx.savepoint():
                self._context.handler.dead(tx, letter.record, letter.reason)
        except Exception as e:
            if classify(e) is not Fault.POISON:
                raise
            log.error("dead_letter_without_consequence", topic=letter.record.topic, error=short(e))

    def _landed(self, shard: Shard, work: Work) -> None:
        shard.failures = 0
        shard.conflicts = 0
        shard.retry_at = 0.0
        if shard.alone > 0:
            shard.alone -= 1
        if work.records:
            # The offset is now past the recorded message.
            shard.careful = max(0, shard.careful - 1)
            shard.trying = False
        self._survived(shard)
        handled = [
            record for topic, count in work.counts.items() for record in shard.done(topic, work.moves[topic].new, count)
        ]
        self._context.poller.handled(handled)
        shard.dirty = True
        shard.ends_since = None
        if not shard.added:
            self._context.handler.read_to(
                shard.partition, {topic: queue.read_to for topic, queue in shard.queues.items()}
            )

    def _refused(self, shard: Shard, records: Sequence[Record], error: Exception) -> None:
        fault = classify(error)
        metrics.RETRIES.labels("batch", fault.value).inc()
        self._survived(shard)
        if fault is Fault.FENCED:
            self._failures.fenced(shard, error)
        elif fault is Fault.WAIT:
            self._failures.back_off(shard, error, "batch_waits")
        elif len(records) > 1:
            shard.conflicts += 1
            # Retry a conflict at once. One that persists, and poison, is found by handling messages
            # one by one.
            if fault in (Fault.POISON, Fault.TIMEOUT, Fault.LOCKED) or shard.conflicts >= CONFLICTS_ALONE:
                shard.conflicts = 0
                shard.alone = len(records)
            log.info("batch_again", shard=shard.partition, fault=fault.value, error=short(error))
        elif not records:
            self._failures.back_off(shard, error, "batch_waits")
        elif fault is Fault.LOCKED:
            shard.conflicts = 0
            self._failures.hold(shard, records[0], error)
        elif fault is Fault.POISON or self._conflict_persists(shard):
            self._set_aside(shard, records[0], short(error))
        else:
            log.info("message_again", shard=shard.partition, fault=fault.value, error=short(error))

    def _conflict_persists(self, shard: Shard) -> bool:
        """Whether one message alone failed ``CONFLICTS_ALONE`` times although Postgres answers."""
        shard.conflicts += 1
        if shard.conflicts < CONFLICTS_ALONE:
            return False
        try:
            with self._context.engine.connect() as conn:
                conn.execute(text("SELECT 1"))
        except SQLAlchemyError as e:
            self._failures.back_off(shard, e, "batch_waits")
            return False
        return True

    def _set_aside(self, shard: Shard, record: Record, reason: str) -> None:
        """Write the dead letter of one message and move its offset."""
        items = [i for i in shard.queues[record.topic].items if i.offset <= record.offset]
        moves, counts = _progress(shard, items)
        work = Work([], [], [Dead(record, reason)], moves, counts, [record])
        shard.conflicts = 0
        try:
            self._apply(shard, work)
        except Exception as e:  # noqa: BLE001 - classified; the message stays queued and is retried
            if classify(e) is Fault.FENCED:
                self._failures.fenced(shard, e)
            else:
                self._failures.back_off(shard, e, "batch_waits")
            return
        self._landed(shard, work)


def _progress(shard: Shard, items: Sequence[Record | End]) -> tuple[dict[str, Move], dict[str, int]]:
    """By topic: the offset after ``items``, and their number."""
    moves: dict[str, Move] = {}
    counts: dict[str, int] = {}
    for item in items:
        old = shard.queues[item.topic].next_offset
        new = item.offset + 1 if isinstance(item, Record) else item.offset
        reached = moves[item.topic].new if item.topic in moves else old
        moves[item.topic] = Move(item.topic, old, max(new, reached))
        counts[item.topic] = counts.get(item.topic, 0) + 1
    return moves, counts
