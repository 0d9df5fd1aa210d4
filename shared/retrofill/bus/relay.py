"""The outbox relay: one active a service, publishing each row exactly once for ``read_committed`` subscribers.

The protocol (docs/how-it-works.md): number a batch in Postgres, publish it in one Kafka transaction together with that
number (a record on the cursor topic), then delete the rows. Deleting a batch and numbering the next are one Postgres
transaction here (``docs/decisions/relay-batch-row.md``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from sqlalchemy import Connection, Engine, RowMapping, delete, func, select, update

from retrofill.bus import metrics, outbox
from retrofill.bus.calls import ANSWER_SECONDS, Calls
from retrofill.bus.clients import common_config, producer, reader
from retrofill.bus.crash import crash_point
from retrofill.bus.faults import Fenced
from retrofill.bus.partitioning import place_of
from retrofill.bus.poller import raise_refusals
from retrofill.bus.topics import Service
from retrofill.errors import kind_and_line
from retrofill.settings import Settings
from retrofill.store.tables import SERVICE_TABLES, ServiceTables

log = structlog.get_logger(__name__)
BATCH_ROWS = 1000
IDLE_POLL_SECONDS = 5.0
POLL_SECONDS = 0.5
RETRY_SECONDS = 0.5
KAFKA_SECONDS = 10.0
CURSOR_KEY = b"cursor"
# Beside the cursor: the epoch of whoever took over last.
TAKEN_KEY = b"taken"


@dataclass(frozen=True)
class Batch:
    """The batch that is numbered and not known to be published."""

    number: int
    rows: Sequence[RowMapping]


class Membership(threading.Thread):
    """Polls the cursor topic's consumer group: whoever is assigned its one partition is the relay."""

    def __init__(self, settings: Settings, service: Service, instance: str, changed: threading.Event) -> None:
        super().__init__(name="relay-membership", daemon=True)
        self._topic = service.cursor_topic(settings.topic_prefix)
        self._changed = changed
        self._stopping = threading.Event()
        self._calls = Calls()
        self.assigned = threading.Event()
        self._consumer = Consumer(
            {
                **common_config(settings, f"{instance}-relay"),
                "group.id": f"{service.group(settings.topic_prefix)}-relay",
                "group.protocol": "consumer",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "latest",
            }
        )

    def run(self) -> None:
        """Keep the membership until stopped."""
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        while not self._stopping.is_set():
            self._calls.make()
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None and (error := message.error()) is not None:
                log.debug("relay_membership", error=error.str())
        self._consumer.close()

    def confirm(self, offset: int) -> None:
        """Have the coordinator accept a commit. Raises ``KafkaException`` where the partition is not ours any more."""
        offsets = [TopicPartition(self._topic, 0, offset)]
        answer = self._calls.ask(lambda: self._consumer.commit(offsets=offsets, asynchronous=False))
        raise_refusals(answer.result(ANSWER_SECONDS))

    def stop(self) -> None:
        """Leave the group."""
        self._stopping.set()
        self.join(timeout=10)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        # Membership is all that is wanted: the cursor is read by another consumer, read_committed, when taking over.
        consumer.pause(partitions)
        self.assigned.set()
        self._changed.set()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        self.assigned.clear()
        self._changed.set()


class Relay(threading.Thread):
    """Publishes the outbox of one service while this instance is its relay."""

    def __init__(self, settings: Settings, service: Service, instance: str, engine: Engine, partitions: int) -> None:
        super().__init__(name="relay", daemon=True)
        self._partitions = partitions
        self._settings = settings
        self._service = service
        self._instance = instance
        self._engine = engine
        self._own: ServiceTables = SERVICE_TABLES[service.package]
        self._topic = service.cursor_topic(settings.topic_prefix)
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._membership = Membership(settings, service, instance, self._woken)
        self._epoch = -1

    def wake(self) -> None:
        """There may be rows; from any thread."""
        self._woken.set()

    def stop(self) -> None:
        """Publish no more, and let another replica be the relay."""
        self._stopping.set()
        self._woken.set()
        self.join(timeout=15)
        self._membership.stop()

    def run(self) -> None:
        """Be the relay whenever Kafka says so, until stopped."""
        self._membership.start()
        while not self._stopping.is_set():
            if not self._membership.assigned.is_set():
                self._wait(None)
                continue
            try:
                self._publish_until_lost()
            except Exception as e:  # noqa: BLE001 - a relay that died would hold the cursor's partition and publish nothing
                # The binding raises a fatal error of a producer inside ``flush``, listener or not; where a log line comes
                # next, a ``SystemError`` comes out of it.
                # After an unclear outcome everything is taken over anew: the cursor says what was published.
                metrics.RETRIES.labels("relay", "fenced" if isinstance(e, Fenced) else "wait").inc()
                if isinstance(e, Fenced):
                    metrics.FENCES.labels("relay").inc()
                log.warning("relay_again", error=kind_and_line(e))
                self._stopping.wait(RETRY_SECONDS)

    def _wait(self, seconds: float | None) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    def _publish_until_lost(self) -> None:
        client, batch = self._take_over()
        while self._membership.assigned.is_set() and not self._stopping.is_set():
            if batch is None:
                self._wait(IDLE_POLL_SECONDS)
                batch = self._next(None)
            else:
                began = time.monotonic()
                crash_point("relay:numbered")
                self._publish(client, batch)
                metrics.PUBLISHED.inc(len(batch.rows))
                metrics.PUBLISH_SECONDS.observe(time.monotonic() - began)
                crash_point("relay:published")
                batch = self._next(batch)
                crash_point("relay:deleted")

    # taking over, in this order (tests/property finds a lost row for others)

    def _take_over(self) -> tuple[Producer, Batch | None]:
        self._membership.confirm(self._read_cursor_end())
        relay = self._own.relay
        with self._engine.begin() as conn:
            self._epoch = conn.execute(
                update(relay).values(epoch=relay.c.epoch + 1).returning(relay.c.epoch)
            ).scalar_one()
        crash_point("relay:epoch-taken")
        client = producer(
            self._settings,
            f"{self._instance}-relay",
            **{
                "transactional.id": f"{self._service.group(self._settings.topic_prefix)}-relay",
                "transaction.timeout.ms": 60_000,
                "linger.ms": 1,
            },
        )
        client.init_transactions(KAFKA_SECONDS)
        crash_point("relay:fenced")
        self._mark(client)
        cursor = self._read_cursor()
        batch = self._recover(cursor)
        metrics.TAKEOVERS.labels("relay").inc()
        log.info("relay_taken", epoch=self._epoch, cursor=cursor, resending=0 if batch is None else len(batch.rows))
        return client, batch

    def _recover(self, cursor: int) -> Batch | None:
        """Drop the batch that was published; give back the one that was numbered and was not."""
        with self._engine.begin() as conn:
            state = self._assert_epoch(conn)
            if state["batch"] <= cursor:
                self._drop(conn, state["batch_ids"])
                return self._number(conn, state, last=cursor)
            return Batch(state["batch"], self._rows(conn, state["batch_ids"]))

    def _next(self, published: Batch | None) -> Batch | None:
        """Delete the batch that was published and number the next, in one transaction."""
        with self._engine.begin() as conn:
            state = self._assert_epoch(conn)
            if published is not None:
                self._drop(conn, state["batch_ids"])
                crash_point("relay:before-deletion-commit")
            return self._number(conn, state, last=state["batch"])

    def _assert_epoch(self, conn: Connection) -> RowMapping:
        """First of every transaction: a predecessor that wakes up must not number rows that a later cursor passes over."""
        relay = self._own.relay
        state = (
            conn.execute(
                select(relay.c.batch, relay.c.batch_ids)
                .where(relay.c.epoch == self._epoch)
                .with_for_update(key_share=True)
            )
            .mappings()
            .first()
        )
        if state is None:
            raise Fenced(f"{self._service.name}: another relay took over")
        return state

    def _drop(self, conn: Connection, ids: Sequence[int]) -> None:
        if ids:
            conn.execute(delete(self._own.outbox).where(self._own.outbox.c.id == func.any(ids)))

    def _number(self, conn: Connection, state: RowMapping, *, last: int) -> Batch | None:
        table, relay = self._own.outbox, self._own.relay
        rows = conn.execute(select(table).order_by(table.c.id).limit(BATCH_ROWS)).mappings().all()
        if not rows and not state["batch_ids"] and last == state["batch"]:
            return None
        numbered = conn.execute(
            update(relay)
            .where(relay.c.epoch == self._epoch)
            .values(batch=last + 1 if rows else last, batch_ids=[row["id"] for row in rows])
        )
        if numbered.rowcount != 1:
            raise Fenced(f"{self._service.name}: another relay took over")
        return Batch(last + 1, rows) if rows else None

    def _rows(self, conn: Connection, ids: Sequence[int]) -> Sequence[RowMapping]:
        table = self._own.outbox
        return conn.execute(select(table).where(table.c.id == func.any(ids)).order_by(table.c.id)).mappings().all()

    # Kafka

    def _publish(self, client: Producer, batch: Batch) -> None:
        """One transaction: the rows in order, and the number of the batch as the cursor."""
        prefix = self._settings.topic_prefix
        client.begin_transaction()
        crash_point("relay:kafka-begun")
        for row in batch.rows:
            self._produce(
                client, prefix + row["topic"], row["key"], row["value"], outbox.unpack_headers(row["headers"])
            )
        self._produce(client, self._topic, CURSOR_KEY, str(batch.number).encode(), [])
        client.flush(KAFKA_SECONDS)
        crash_point("relay:before-kafka-commit")
        client.commit_transaction(KAFKA_SECONDS)

    def _produce(
        self,
        client: Producer,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, str | bytes | None]],
    ) -> None:
        # Where its reader expects it; the cursor's topic is used as one of one partition.
        partition = 0 if topic == self._topic else place_of(key, self._partitions)
        while True:
            try:
                client.produce(topic, key=key, value=value, headers=headers, partition=partition)
            except BufferError:
                # The local queue is full: wait until some of it is delivered.
                client.poll(0.1)
            else:
                return

    def _read_cursor_end(self) -> int:
        with _reading(self._settings, f"{self._instance}-cursor") as consumer:
            return consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=KAFKA_SECONDS)[1]

    def _mark(self, client: Producer) -> None:
        """Commit the epoch to the cursor's topic: whoever reads it there has read the outcome of all that came before.

        Without it the answer to a read of the cursor would have to be taken for the newest: a broker that is just coming up
        again may still know of less (``docs/decisions/relay-reads-its-own-mark.md``).
        """
        client.begin_transaction()
        self._produce(client, self._topic, TAKEN_KEY, str(self._epoch).encode(), [])
        client.flush(KAFKA_SECONDS)
        client.commit_transaction(KAFKA_SECONDS)

    def _read_cursor(self) -> int:
        """The number of the last published batch, read committed up to the own mark; 0 where nothing was published."""
        with _reading(self._settings, f"{self._instance}-cursor") as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=KAFKA_SECONDS)
            back = 100
            while True:
                start = max(low, high - back)
                found = _last_cursor(consumer, TopicPartition(self._topic, 0, start), str(self._epoch).encode())
                if found is not None or start == low:
                    return int(found or 0)
                back *= 10


class _reading:
    """A consumer that is closed afterwards."""

    def __init__(self, settings: Settings, client_id: str) -> None:
        self._consumer = reader(settings, client_id)

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def _last_cursor(consumer: Consumer, start: TopicPartition, mark: bytes) -> bytes | None:
    """The last cursor from ``start`` to ``mark``. Raises ``KafkaException``, also where the mark does not come."""
    consumer.assign([start])
    last: bytes | None = None
    until = time.monotonic() + KAFKA_SECONDS
    while (message := consumer.poll(max(0.0, until - time.monotonic()))) is not None:
        error = message.error()
        if error is None:
            if message.key() == CURSOR_KEY:
                last = message.value()
            elif message.value() == mark:
                return last
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
