"""The outbox relay: one active a service, publishing each row exactly once for ``read_committed`` subscribers.

The protocol (docs/how-it-works.md): number a batch in Postgres, publish it in one Kafka transaction together with that
number (a record on the cursor topic), then delete the rows. Deleting a batch and numbering the next are one Postgres
transaction here (``docs/decisions/relay-batch-row.md``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from confluent_kafka import Producer
from sqlalchemy import Connection, Engine, RowMapping, delete, func, select, update

from retrofill.bus.clients import producer
from retrofill.bus.crash import crash_point
from retrofill.bus.faults import Fenced
from retrofill.bus.membership import Membership
from retrofill.bus.observability import metrics
from retrofill.bus.relay.cursor import CURSOR_KEY, TAKEN_KEY, Marks, read_cursor, read_end
from retrofill.bus.relay.refusals import Decision, Hold, Narrow, SetAside, Wait, decide
from retrofill.bus.relay.sending import KAFKA_SECONDS, Sending
from retrofill.bus.relay.setting_aside import set_aside
from retrofill.bus.went_back import contradiction
from retrofill.bus.worker.holds import Holds
from retrofill.contract.topics import Service
from retrofill.errors import kind_and_line
from retrofill.settings import Settings
from retrofill.store.history import PostgresWentBack
from retrofill.store.outbox import take
from retrofill.store.tables import SERVICE_TABLES, ServiceTables

log = structlog.get_logger(__name__)
BATCH_ROWS = 1000
# What a batch has in memory here, and once more in the Kafka client.
BATCH_BYTES = 8_000_000
IDLE_POLL_SECONDS = 5.0
RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class Batch:
    """The batch that is numbered and not known to be published."""

    number: int
    rows: Sequence[RowMapping]


class NotPublished(Exception):
    """A batch was refused, for a reason that may pass or with an unknown outcome of its transaction."""


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
        self._engine = engine
        self._went_back = went_back
        self._own: ServiceTables = SERVICE_TABLES[service.package]
        self._topic = service.cursor_topic(settings.topic_prefix)
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._membership = Membership(settings, service, instance, self._woken)
        self._epoch = -1
        self._holds = Holds()
        self._limit = BATCH_ROWS
        # What to do about a batch that was refused, once it is certain that it was not published: (number, ids, what).
        self._decision: tuple[int, list[int], Decision] | None = None

    def trouble(self) -> str | None:
        """Why events wait that Kafka does not take, while it answers; from any thread."""
        return self._holds.trouble() if self._membership.assigned.is_set() else None

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
                self._wait(self._holds.seconds_to_next(IDLE_POLL_SECONDS))
                self._try_topics(client)
                batch = self._next(None)
                if batch is None:
                    # Nothing waits for them any more.
                    self._holds.took(self._holds.due())
            else:
                began = time.monotonic()
                crash_point("relay:numbered")
                if not self._publish(client, batch):
                    batch = self._settle()
                    continue
                metrics.PUBLISHED.inc(len(batch.rows))
                metrics.PUBLISH_SECONDS.observe(time.monotonic() - began)
                crash_point("relay:published")
                self._try_topics(client)
                batch = self._next(batch)
                crash_point("relay:deleted")

    # taking over, in this order (tests/property finds a lost row for others)

    def _take_over(self) -> tuple[Producer, Batch | None]:
        self._membership.confirm(read_end(self._settings, self._topic, f"{self._instance}-cursor"))
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
                # How long a topic may be unknown before what is sent there is refused.
                "topic.metadata.propagation.max.ms": 5_000,
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
            marks = Marks(cursor, taken=self._epoch)
            if (reason := contradiction(self._service, marks, batch=state["batch"], epoch=self._epoch)) is not None:
                self._went_back(reason)
                raise PostgresWentBack(reason)
            if state["batch"] == cursor:
                self._decision = None
                self._drop(conn, state["batch_ids"])
                return self._number(conn, state, last=cursor)
            return self._decided(conn, state)

    def _settle(self) -> Batch | None:
        """After a batch was refused and its transaction aborted: do what was decided about it."""
        with self._engine.begin() as conn:
            return self._decided(conn, self._assert_epoch(conn))

    def _decided(self, conn: Connection, state: RowMapping) -> Batch | None:
        """The batch that was not published, as it is to be sent again: with fewer rows where it was refused.

        It keeps its number: nobody has published, or can publish, another batch of this number.
        """
        number, refused, decision = self._decision or (0, [], Wait())
        self._decision = None
        ids = list(state["batch_ids"])
        # Another relay may have decided about it meanwhile: what is left under its number is another batch.
        if (number, refused) == (state["batch"], ids):
            ids = self._kept(conn, ids, decision)
        if ids == list(state["batch_ids"]):
            return Batch(state["batch"], self._rows(conn, ids))
        relay = self._own.relay
        if conn.execute(update(relay).where(relay.c.epoch == self._epoch).values(batch_ids=ids)).rowcount != 1:
            raise Fenced(f"{self._service.name}: another relay took over")
        return Batch(state["batch"], self._rows(conn, ids)) if ids else self._number(conn, state, last=state["batch"])

    def _kept(self, conn: Connection, ids: list[int], decision: Decision) -> list[int]:
        """The rows of a refused batch that stay in it."""
        match decision:
            case Narrow(rows):
                self._limit = rows
                return ids[:rows]
            case Hold(topics):
                return [row["id"] for row in self._rows(conn, ids) if row["topic"] not in topics]
            case SetAside(id, reason):
                crash_point("relay:setting-aside")
                set_aside(conn, self._service, self._own, id, reason)
                return [each for each in ids if each != id]
            case _:
                return ids

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
        relay = self._own.relay
        rows = self._rows(conn, take(conn, self._own, self._limit, BATCH_BYTES, self._holds.waiting()))
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
        if not ids:
            return []
        table = self._own.outbox
        return conn.execute(select(table).where(table.c.id == func.any(ids)).order_by(table.c.id)).mappings().all()

    # Kafka

    def _publish(self, client: Producer, batch: Batch) -> bool:
        """One transaction: the rows in order, and the number of the batch as the cursor.

        False where it was refused, is aborted, and it is decided what follows. Raises where all begins anew.
        """
        sending = Sending(client, self._settings.topic_prefix, self._partitions)
        if sending.publish(batch.rows, lambda: (self._topic, CURSOR_KEY, str(batch.number).encode())):
            self._limit = min(BATCH_ROWS, 2 * self._limit)
            self._holds.took(row["topic"] for row in batch.rows)
            return True
        rows = [(row["id"], row["topic"]) for row in batch.rows]
        decision = decide(rows, sending.refused, sending.overall, slow=sending.slow)
        self._decision = (batch.number, [id for id, _ in rows], decision)
        self._report(batch, decision)
        if sending.abort() and not isinstance(decision, Wait):
            return False
        raise NotPublished(sending.why())

    def _report(self, batch: Batch, decision: Decision) -> None:
        match decision:
            case Hold(topics):
                for topic, reason in topics.items():
                    self._holds.hold(topic, reason)
                    metrics.RETRIES.labels("relay", "topic").inc()
                    log.error(
                        "topic_refused",
                        topic=self._settings.topic_prefix + topic,
                        reason=reason,
                        what_to_do="give the topic back ('retrofill init' makes what is missing) or grant the right to "
                        "write it: its events wait in the outbox, those of other topics go on",
                    )
            case Narrow(rows):
                metrics.RETRIES.labels("relay", "narrow").inc()
                log.info("batch_narrowed", batch=batch.number, rows=len(batch.rows), to=rows)
            case _:
                pass

    def _try_topics(self, client: Producer) -> None:
        """Ask whether the topics that were refused are there again: to ask is cheap, to send holds up all others."""
        for topic in self._holds.due():
            found = client.list_topics(self._settings.topic_prefix + topic, timeout=KAFKA_SECONDS)
            error = found.topics[self._settings.topic_prefix + topic].error
            if error is not None:
                self._holds.hold(topic, f"{error.name()}: {error.str()}")

    def _mark(self, client: Producer) -> None:
        """Commit the epoch to the cursor's topic: whoever reads it there has read the outcome of all that came before.

        Without it the answer to a read of the cursor would have to be taken for the newest: a broker that is just coming up
        again may still know of less (``docs/decisions/relay-reads-its-own-mark.md``).
        """
        client.begin_transaction()
        client.produce(self._topic, key=TAKEN_KEY, value=str(self._epoch).encode(), headers=[])
        client.flush(KAFKA_SECONDS)
        client.commit_transaction(KAFKA_SECONDS)

    def _read_cursor(self) -> int:
        mark = str(self._epoch).encode()
        return read_cursor(self._settings, self._topic, f"{self._instance}-cursor", mark)
