"""The way of all reports of a host to Kafka: those of its drivers, and its own about them.

While Kafka does not acknowledge heartbeats, their leases are renewed in Postgres, so that an outage of Kafka ends nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered
from sqlalchemy import Engine

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.tracing import HEADER
from retrofill_core.bus.clients import POLL_SECONDS, is_fatal
from retrofill_core.bus.envelope import headers_of, wire_headers
from retrofill_core.contract.runs import SUBJECT, Report, subject_of
from retrofill_core.contract.topics import Topic, partition_of
from retrofill_core.store import attempts
from run_starter.executors import Key, OnDelivery

log = get_log(__name__)
AGAIN_SECONDS = 0.2
FLUSH_SECONDS = 5.0


class ReportWire:
    """Publishes reports, those of one backfill in the order in which they are sent. Thread-safe.

    ``make`` makes a producer: the first one, and the next one after an error that ended the last.
    """

    def __init__(self, make: Callable[[], Producer], topic_prefix: str, partitions: int) -> None:
        self._make = make
        self._producer = make()
        self._lock = threading.Lock()
        self._topic = f"{topic_prefix}{Topic.RUN_REPORTS}"
        self._partitions = partitions
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="acknowledgements", daemon=True)
        self._thread.start()

    def send(self, report: Report, source: str, on_delivery: OnDelivery, trace: str | None = None) -> None:
        """Send a report. Blocks while the broker knows no such topic, or too much waits for it."""

        def delivered(error: KafkaError | None, _: Delivered) -> None:
            on_delivery(None if error is None else f"a {report.type} was not delivered: {error}")

        about = {SUBJECT: subject_of(report)}
        headers = wire_headers(headers_of(report, source) | about | ({} if trace is None else {HEADER: trace}))
        while not self._closed.is_set():
            client = self._producer
            try:
                client.produce(
                    self._topic,
                    key=report.backfill_id.encode(),
                    partition=partition_of(report.backfill_id, self._partitions),
                    value=report.encode(),
                    headers=headers,
                    on_delivery=delivered,
                )
                self._poll(client, 0)
                return
            except (BufferError, KafkaException) as e:
                if self._replaced(client, e):
                    continue
                if not _passes(e):
                    on_delivery(f"a {report.type} cannot be sent: {e}")
                    return
            self._connect()
            self._closed.wait(AGAIN_SECONDS)
        on_delivery("the run-starter stopped")

    def close(self) -> None:
        """Wait a little until everything is delivered. Nothing can be sent any more."""
        with suppress(KafkaException):  # a fatal error
            self._producer.flush(FLUSH_SECONDS)
        self._closed.set()
        self._thread.join(POLL_SECONDS * 2)

    def _connect(self) -> None:
        """Ask for the topic, which a starting broker denies to have. The client believes that until it asks again."""
        try:
            self._producer.list_topics(self._topic, timeout=5)
        except KafkaException as e:
            log.warning("kafka_away", error=str(e))

    def _serve(self) -> None:
        # Before the first report, which then does not wait for it.
        self._connect()
        while not self._closed.is_set():
            try:
                self._poll(self._producer, POLL_SECONDS)
            except Exception as e:  # noqa: BLE001 - without this thread, reports would be acknowledged late or not at all
                log.error("reports_not_acknowledged", error=first_line(e))
                self._closed.wait(POLL_SECONDS)

    def _poll(self, client: Producer, seconds: float) -> None:
        """Serve delivery reports. The binding raises a fatal error here; those that wait are then still to be served."""
        try:
            client.poll(seconds)
        except KafkaException as e:
            if not self._replaced(client, e):
                raise

    def _replaced(self, client: Producer, error: BaseException) -> bool:
        """Whether ``error`` ended the client, and another one is in its place."""
        if not (isinstance(error, KafkaException) and is_fatal(error.args[0])):
            return False
        with self._lock:
            first = self._producer is client
            if first:
                log.error("kafka_producer_failed", error=error.args[0].str())
                self._producer = self._make()
        if first:
            _give_up(client)
        return True


def _give_up(client: Producer) -> None:
    """Have it say of all reports that it still has that they were not delivered."""
    client.purge()
    until = time.monotonic() + FLUSH_SECONDS
    while len(client) and time.monotonic() < until:
        with suppress(KafkaException):
            client.poll(POLL_SECONDS)


def _passes(error: BufferError | KafkaException) -> bool:
    """Whether sending again may help."""
    return isinstance(error, BufferError) or error.args[0].code() == KafkaError._UNKNOWN_TOPIC


Renewed = Callable[[], object]


class Heartbeats:
    """Of all drivers of a host. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._undelivered: Counter[Key] = Counter()
        # Of each attempt whose driver beats while an earlier heartbeat is undelivered, how it is told that its lease was
        # renewed.
        self._late: dict[Key, Renewed] = {}

    def sent(self, attempt: Key, on_delivery: OnDelivery, renewed: Renewed) -> OnDelivery:
        """A driver beats. Returns what is to be called once Kafka has its heartbeat, or never will."""
        with self._lock:
            if self._undelivered[attempt]:
                self._late[attempt] = renewed
            self._undelivered[attempt] += 1

        def delivered(why: str | None) -> None:
            with self._lock:
                self._undelivered[attempt] -= 1
                if not self._undelivered[attempt]:
                    del self._undelivered[attempt]
                    self._late.pop(attempt, None)
            on_delivery(why)

        return delivered

    def renew(self, engine: Engine, own: Collection[int]) -> None:
        """Renew the leases of drivers that beat while Kafka is silent, and tell them. ``own``: the ids of this host.

        If that fails, the next heartbeat is the next try.
        """
        with self._lock:
            late, self._late = self._late, {}
        if late:
            with engine.begin() as conn:
                renewed = attempts.renew(conn, late, own)
            log.info("leases_renewed_in_postgres", attempts=len(renewed), drivers=len(late))
            for id in renewed:
                late[id]()
