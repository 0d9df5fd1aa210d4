"""The outbox relay: publishes each row exactly once for ``read_committed`` subscribers.

One instance per service is active. The protocol (docs/how-it-works.md): number a batch in Postgres
(``numbering.py``), publish it in one Kafka transaction together with that number (a record on the
cursor topic), then delete the rows. Deleting a batch and numbering the next are one Postgres
transaction (``docs/decisions/relay-batch-row.md``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from confluent_kafka import KafkaError, KafkaException, Producer
from sqlalchemy import Engine

from retrofill.errors import kind_and_line
from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.clients import producer
from retrofill_core.bus.faults import Fenced
from retrofill_core.bus.relay.cursor import (
    CURSOR_KEY,
    CURSOR_PARTITION,
    KAFKA_SECONDS,
    TAKEN_KEY,
    Marks,
    Membership,
    read_cursor,
    read_end,
    read_marks,
)
from retrofill_core.bus.relay.numbering import Batch, Numbering
from retrofill_core.bus.relay.refusals import Decision, HeldTopics, Holds, Narrow, Stuck, Wait, decide
from retrofill_core.bus.relay.sending import Sending
from retrofill_core.bus.went_back import old_primary
from retrofill_core.contract.topics import Service
from retrofill_core.settings import Settings
from retrofill_core.store.history import SPAN, PostgresWentBack, generation_of
from retrofill_core.store.outbox import Stored, unpack_headers

log = get_log(__name__)
IDLE_POLL_SECONDS = 5.0
RETRY_SECONDS = 0.5
# How long events that nobody acts on may wait, so that one batch carries those of a whole run.
LINGER_SECONDS = 0.05


class NotPublished(Exception):
    """A batch was refused for a temporary reason, or with an unknown outcome."""


class Relay(threading.Thread):
    """Publishes the outbox of one service while this instance is its relay."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        instance: str,
        engine: Engine,
        partitions: int,
        went_back: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(name="relay", daemon=True)
        self._partitions = partitions
        self._settings = settings
        self._service = service
        self._instance = instance
        self._went_back = went_back
        self._topic = service.cursor_topic(settings.topic_prefix)
        self._woken = threading.Event()
        self._urgent = False
        self._linger_until: float | None = None
        self._stopping = threading.Event()
        self._membership = Membership(settings, service, instance, self._woken)
        self._holds = Holds()
        self._numbering = Numbering(engine, service, self._holds)
        # Since when nothing was published, and why; ``None`` after a success.
        self._failing: tuple[str, str] | None = None

    def is_active(self) -> bool:
        """Whether Kafka assigned the relay to this instance; from any thread."""
        return self._membership.assigned.is_set()

    def problem(self) -> str | None:
        """Why Kafka refuses or does not store events although it answers, or ``None``; from any thread."""
        if not self._membership.assigned.is_set():
            return None
        failing = self._failing
        return self._holds.problem() if failing is None else f"nothing published since {failing[0]}: {failing[1]}"

    def wake(self, *, later: bool = False) -> None:
        """There may be rows to publish; from any thread. ``later``: they may wait a moment."""
        if not later:
            self._urgent = True
        elif self._linger_until is None:
            self._linger_until = time.monotonic() + LINGER_SECONDS
        self._woken.set()

    def stop(self) -> None:
        """Stop publishing and leave the group, so another replica becomes the relay."""
        self._stopping.set()
        self.wake()
        self.join(timeout=15)
        self._membership.stop()

    def run(self) -> None:
        """Publish whenever Kafka assigns the relay to this instance, until stopped."""
        self._membership.start()
        while not self._stopping.is_set():
            if not self._membership.assigned.is_set():
                self._wait(None)
                continue
            try:
                self._publish_until_lost()
            # A relay thread that died would keep the cursor's partition and publish nothing.
            except Exception as e:  # noqa: BLE001
                # The binding raises a producer's fatal error inside ``flush``, with or without an
                # error callback; if a log call comes next, it surfaces as a ``SystemError``.
                # After an unclear outcome, take over again: the cursor shows what was published.
                metrics.RETRIES.labels("relay", "fenced" if isinstance(e, Fenced) else "wait").inc()
                if isinstance(e, Fenced):
                    metrics.FENCES.labels("relay").inc()
                else:
                    self._fails(kind_and_line(e))
                log.warning("relay_again", error=kind_and_line(e), since=self._failing and self._failing[0])
                self._stopping.wait(RETRY_SECONDS)

    def _fails(self, reason: str) -> None:
        self._failing = (stamp() if self._failing is None else self._failing[0], reason)

    def _wait(self, seconds: float | None) -> None:
        """Wait until woken, and then for more rows if those that woke us may wait."""
        self._woken.wait(seconds)
        self._woken.clear()
        while not self._urgent and self._linger_until is not None:
            left = self._linger_until - time.monotonic()
            if left <= 0:
                break
            self._woken.wait(left)
            self._woken.clear()
        self._urgent, self._linger_until = False, None

    def _publish_until_lost(self) -> None:
        client, batch = self._take_over()
        while self._membership.assigned.is_set() and not self._stopping.is_set():
            if batch is None:
                self._failing = None
                self._wait(self._holds.seconds_to_next(IDLE_POLL_SECONDS))
                self._try_topics(client)
                batch = self._numbering.next(None)
                if batch is None:
                    # No rows wait for these topics any more.
                    self._holds.release(self._holds.due())
            else:
                began = time.monotonic()
                crash_point("relay:numbered")
                if not self._publish(client, batch):
                    # The next attempt needs a producer of its own: this one would give the messages
                    # of another batch the numbers of those it discarded, which the broker may
                    # have, and it would acknowledge them as repeats without storing them.
                    return
                self._failing = None
                metrics.PUBLISHED.inc(len(batch.rows))
                metrics.PUBLISH_SECONDS.observe(time.monotonic() - began)
                crash_point("relay:published")
                self._try_topics(client)
                batch = self._numbering.next(batch)
                crash_point("relay:deleted")

    # The steps must keep this order: tests/property finds a lost row for any other.

    def _take_over(self) -> tuple[Producer, Batch | None]:
        self._membership.confirm(read_end(self._settings, self._topic, f"{self._instance}-cursor"))
        self._numbering.take_epoch()
        crash_point("relay:epoch-taken")
        ids = list(self._service.transactional_ids(self._settings.topic_prefix))
        client = self._producer(ids.pop(self._numbering.transactional))
        self._fence(client)
        crash_point("relay:fenced")
        epoch = self._numbering.epoch
        if self._begins_generation():
            # Postgres may have lost that a predecessor changed its id. Marked first, so that one which takes over with
            # another id from here on sees it.
            self._mark(client, generation_of(epoch) * SPAN)
            with ThreadPoolExecutor(len(ids)) as together:
                list(together.map(lambda id: self._fence(self._producer(id)), ids))
        self._mark(client, epoch)
        marks = self._read_cursor()
        try:
            self._refuse_old_primary(client, marks)
            batch = self._numbering.recover(marks.cursor)
        except PostgresWentBack as e:
            self._went_back(str(e))
            raise
        metrics.TAKEOVERS.labels("relay").inc()
        resending = 0 if batch is None else len(batch.rows)
        log.info("relay_taken", epoch=epoch, cursor=marks.cursor, resending=resending)
        return client, batch

    def _begins_generation(self) -> bool:
        """Whether no relay of this generation has taken over. An older answer of Kafka only fences too much."""
        epoch = self._numbering.epoch
        if generation_of(epoch) == 0:
            return False
        found = read_marks(self._settings, [self._topic], f"{self._instance}-cursor")
        return self._topic not in found or found[self._topic].taken <= generation_of(epoch) * SPAN

    def _refuse_old_primary(self, client: Producer, marks: Marks) -> None:
        """Raises ``PostgresWentBack`` where another Postgres has begun a newer generation."""
        epoch = self._numbering.epoch
        if generation_of(marks.taken) > generation_of(epoch):
            # For those who read only the last one.
            self._mark(client, marks.taken)
            raise PostgresWentBack(old_primary(self._service, marks.taken, epoch))

    def _fence(self, client: Producer) -> None:
        try:
            client.init_transactions(KAFKA_SECONDS)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.CONCURRENT_TRANSACTIONS:
                raise
            raise NotPublished(
                "a partition cannot store the end of the last transaction: bring it back "
                "('kafka-topics.sh --describe --under-min-isr-partitions' lists it)"
            ) from None

    def _producer(self, transactional_id: str) -> Producer:
        return producer(
            self._settings,
            f"{self._instance}-relay",
            **{
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 1,
                # How long a topic may be unknown before messages to it are refused.
                "topic.metadata.propagation.max.ms": 5_000,
            },
        )

    def _mark(self, client: Producer, epoch: int) -> None:
        """Commit ``epoch`` to the cursor topic; reading up to it proves that the cursor is current.

        Without this mark, a broker that is still starting up could return an older cursor
        (``docs/decisions/relay-reads-its-own-mark.md``).
        """
        client.begin_transaction()
        mark = str(epoch).encode()
        client.produce(self._topic, key=TAKEN_KEY, value=mark, partition=CURSOR_PARTITION, headers=[])
        if client.flush(KAFKA_SECONDS) > 0:
            raise NotPublished(
                f"partition {CURSOR_PARTITION} of {self._topic} stores nothing: bring back its leader, or as many "
                "replicas as its min.insync.replicas"
            )
        client.commit_transaction(KAFKA_SECONDS)

    def _read_cursor(self) -> Marks:
        mark = str(self._numbering.epoch).encode()
        return read_cursor(self._settings, self._topic, f"{self._instance}-cursor", mark)

    def _publish(self, client: Producer, batch: Batch) -> bool:
        """Publish the rows in order, and the batch number as the cursor, in one transaction.

        Returns False where it was refused and aborted, and a decision waits for the takeover that
        has to follow. Raises where the outcome is unknown, or there is nothing to decide.
        """
        sending = self._sending(client)
        if sending.publish(batch.rows, lambda: (self._topic, CURSOR_KEY, str(batch.number).encode())):
            self._numbering.published()
            self._holds.release(row.topic for row in batch.rows)
            return True
        rows = [(row.id, row.topic) for row in batch.rows]
        stuck = [row.id for row in sending.stuck]
        decision = decide(rows, sending.refused, sending.overall, slow=sending.slow, stuck=stuck)
        reason = sending.reason()
        if isinstance(decision, Narrow) and sending.slow:
            self._fails(reason)
        self._numbering.refused(batch, decision)
        report(decision, batch, sending, self._holds)
        aborted = sending.abort()
        if aborted and sending.slow:
            # A partition that cannot store the end of the transaction keeps its id busy.
            self._numbering.change_id()
        if aborted and not isinstance(decision, Wait):
            return False
        raise NotPublished(reason)

    def _sending(self, client: Producer) -> Sending:
        return Sending(client, self._settings.topic_prefix, self._partitions)

    def _try_topics(self, client: Producer) -> None:
        """Check whether held topics take messages again: a failed send would block all topics."""
        for topic, held in self._holds.due().items():
            found = client.list_topics(self._settings.topic_prefix + topic, timeout=KAFKA_SECONDS)
            error = found.topics[self._settings.topic_prefix + topic].error
            if error is not None:
                self._holds.hold(topic, f"{error.name()}: {error.str()}")
            elif held.rows and not self._stores(topic, held.rows):
                self._holds.hold(topic, held.reason, held.rows)

    def _stores(self, topic: str, rows: Sequence[Stored]) -> bool:
        """Whether ``topic`` stores ``rows``, by a trial that nobody sees. Each topic has its own id for that."""
        try:
            id = f"{self._service.relay_id(self._settings.topic_prefix)}-trial-{topic}"
            return self._sending(self._producer(id)).stores(rows)
        except KafkaException:
            return False


def report(decision: Decision, batch: Batch, sending: Sending, holds: Holds) -> None:
    """Log ``decision`` and hold its topics."""
    match decision:
        case HeldTopics(topics):
            for topic, reason in topics.items():
                holds.hold(topic, reason)
                metrics.RETRIES.labels("relay", "topic").inc()
                log.error(
                    "topic_refused",
                    topic=sending.prefix + topic,
                    reason=reason,
                    what_to_do="recreate the topic ('retrofill init' creates missing ones) or grant the right to "
                    "write to it; its events wait in the outbox, other topics continue",
                )
        case Stuck(topics):
            for topic in sorted(topics):
                _hold_stuck(topic, [row for row in sending.stuck if row.topic == topic], sending, holds)
        case Narrow(rows):
            metrics.RETRIES.labels("relay", "narrow").inc()
            log.info("batch_narrowed", batch=batch.number, rows=len(batch.rows), to=rows)
        case _:
            pass


def _hold_stuck(topic: str, rows: list[Stored], sending: Sending, holds: Holds) -> None:
    places = "; ".join(sending.place(row) for row in rows)
    holds.hold(topic, f"nothing stored since {stamp()}: {places}", rows)
    metrics.RETRIES.labels("relay", "topic").inc()
    for row in rows:
        log.error(
            "topic_stuck",
            topic=sending.prefix + topic,
            partition=sending.partition_of(row),
            outbox_row=row.id,
            type=_text(dict(unpack_headers(row.headers)).get("ce_type")),
            key=_text(row.key),
            what_to_do="bring back the partition's leader, or as many replicas as the topic's min.insync.replicas; "
            "the topic's events wait in the outbox, other topics continue",
        )


def _text(raw: str | bytes | None) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw or ""


def stamp() -> str:
    """The present time, to the second."""
    return datetime.now(UTC).isoformat(" ", "seconds")
