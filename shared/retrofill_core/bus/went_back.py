"""Continues on a Postgres that took over, or stops the service where Postgres went back in time.

Events are numbered, and relay takeovers counted, in Postgres before they reach Kafka. So a number
in Kafka that Postgres does not have was lost by Postgres
(``docs/decisions/postgres-went-back.md``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import psycopg
from confluent_kafka import KafkaException
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill_core.bus.clients import producer
from retrofill_core.bus.relay.cursor import CURSOR_PARTITION, KAFKA_SECONDS, TAKEN_KEY, Marks, read_marks
from retrofill_core.contract.topics import SERVICES, Service
from retrofill_core.settings import Settings
from retrofill_core.store.history import (
    SPAN,
    WHAT_TO_DO,
    PostgresWentBack,
    RelayRow,
    begin_generation,
    compare_history,
    generation_of,
    is_recorded,
    lock_generation,
    read_relays,
    relays,
)

log = get_log(__name__)
COMPARE_SECONDS = 10.0


class Guard:
    """Stops one process through ``stopping`` once Postgres went back; from any thread."""

    def __init__(self, settings: Settings, service: Service, instance: str, stopping: threading.Event) -> None:
        self._settings = settings
        self._service = service
        self._instance = instance
        self._stopping = stopping
        self._reason: str | None = None
        # The newest timeline that this process has worked on.
        self._timeline = 0

    def reason(self) -> str | None:
        """One line on why the service must not work, ``None`` if it may."""
        return self._reason

    def trip(self, reason: str) -> None:
        """Stop the service: Postgres went back."""
        if self._reason is None:
            self._reason = reason
            log.error("postgres_went_back", error=reason)
        self._stopping.set()

    def watch(self, compare: Callable[[], object], seconds: float = COMPARE_SECONDS) -> None:
        """Run ``compare`` (``check_marks``) every ``seconds`` until the service stops, and stop it for what it finds.

        Nothing else ends a service that works on an old primary which stays writable: its connections stay open.
        """
        while not self._stopping.wait(seconds):
            try:
                compare()
            except PostgresWentBack as e:
                self.trip(str(e))
            except (KafkaException, SQLAlchemyError) as e:
                log.debug("not_compared", error=first_line(e))

    def check(self, conn: psycopg.Connection) -> None:
        """Check a new connection, and begin a generation where another server took over.

        Raises ``PostgresWentBack``, and a database error where it cannot be known yet.
        """
        try:
            self._check(conn)
        except PostgresWentBack as e:
            self.trip(str(e))
            raise

    def _check(self, conn: psycopg.Connection) -> None:
        found = compare_history(conn)
        if found is None:
            return
        recorded, here = found
        if recorded.system_identifier != here.system_identifier:
            raise PostgresWentBack(f"this is not the recorded Postgres: {WHAT_TO_DO}")
        if here.timeline < recorded.timeline:
            raise PostgresWentBack(
                f"Postgres is on timeline {here.timeline}, but {recorded.timeline} is recorded: {WHAT_TO_DO}"
            )
        if here.timeline < self._timeline:
            # Not this service's end: the newer one may be reachable again.
            raise psycopg.OperationalError(
                f"this Postgres is an old primary on timeline {here.timeline}; {self._timeline} has taken over: stop it"
            )
        if here != recorded:
            self._take_over(conn)
        self._timeline = here.timeline

    def _take_over(self, conn: psycopg.Connection) -> None:
        """Begin a generation, as the first of all services. Raises ``PostgresWentBack`` for a lost event."""
        try:
            if lock_generation(conn):
                generation = continue_on(self._settings, self._service, self._instance, read_relays(conn))
                begin_generation(conn, generation)
                conn.commit()
                log.warning("generation_begun", generation=generation)
        except KafkaException as e:
            raise psycopg.OperationalError(
                f"another Postgres took over, but Kafka does not answer: {first_line(e)}"
            ) from e
        finally:
            conn.rollback()


def continue_on(settings: Settings, service: Service, instance: str, rows: Mapping[str, RelayRow]) -> int:
    """The number of the generation to begin, which Kafka stores before Postgres does.

    So a server that takes over without the commit of this one begins another. Raises ``PostgresWentBack``
    where Kafka has what Postgres does not, and ``KafkaException``.
    """
    topics = {each.cursor_topic(settings.topic_prefix): each for each in SERVICES.values()}
    marks = read_marks(settings, topics, f"{instance}-cursor")
    if unread := topics.keys() - marks.keys():
        raise PostgresWentBack(f"another Postgres took over, and topic {min(unread)} cannot be read: {WHAT_TO_DO}")
    # A generation that was announced is not one in which a relay worked.
    worked = {
        topics[topic].name: Marks(each.cursor, 0 if each.taken % SPAN == 0 else each.taken)
        for topic, each in marks.items()
    }
    if (reason := went_back(worked, rows, recorded=True)) is not None:
        raise PostgresWentBack(reason)
    numbers = [row.epoch for row in rows.values()] + [found.taken for found in marks.values()]
    generation = max(map(generation_of, numbers)) + 1
    client = producer(settings, f"{instance}-generation")
    mark = str(generation * SPAN).encode()
    errors: list[object] = []
    client.produce(
        service.cursor_topic(settings.topic_prefix),
        key=TAKEN_KEY,
        value=mark,
        partition=CURSOR_PARTITION,
        on_delivery=lambda error, _: errors.append(error),
    )
    client.flush(KAFKA_SECONDS)
    if errors != [None]:
        raise psycopg.OperationalError(f"another Postgres took over, but Kafka does not store that: {errors}")
    return generation


def check_marks(settings: Settings, instance: str, engine: Engine) -> set[str]:
    """Compare every service's marks in Kafka with Postgres; returns the topics that may not be read.

    A service that published nothing in the lost time shows no sign of it, so each checks all.
    Raises ``PostgresWentBack``, ``KafkaException`` or a database error.
    """
    topics = {service.cursor_topic(settings.topic_prefix): service for service in SERVICES.values()}
    # Kafka first: whatever it has was in Postgres before.
    marks = read_marks(settings, topics, f"{instance}-cursor")
    with engine.connect() as conn:
        # Before the rows: who records a server changes them in the same transaction.
        recorded = is_recorded(conn)
        rows = relays(conn)
    found = {topics[topic].name: each for topic, each in marks.items()}
    if (reason := went_back(found, rows, recorded=recorded)) is not None:
        raise PostgresWentBack(reason)
    return topics.keys() - marks.keys()


def went_back(marks: Mapping[str, Marks], rows: Mapping[str, RelayRow], *, recorded: bool) -> str | None:
    """One line on the first contradiction, by service name; ``None`` if there is none.

    ``recorded``: whether the server that answers is the recorded one. Another has just taken over, and a pooler led
    here; its generation may be in Kafka before it is in Postgres. Whoever connects next compares and begins it.
    """
    if not recorded:
        return None
    found = (contradiction(SERVICES[name], each, rows[name]) for name, each in marks.items())
    return next((reason for reason in found if reason is not None), None)


def contradiction(service: Service, marks: Marks, row: RelayRow) -> str | None:
    """One line with what to do if Kafka is ahead of Postgres."""
    if generation_of(marks.taken) > generation_of(row.epoch):
        return old_primary(service, marks.taken, row.epoch)
    for what, in_kafka, in_postgres in (("batch", marks.cursor, row.batch), ("relay epoch", marks.taken, row.epoch)):
        if in_kafka > in_postgres:
            return (
                f"Kafka has {what} {in_kafka} of the {service.name}, Postgres only {in_postgres}: "
                f"it was restored from an older copy; {WHAT_TO_DO}"
            )
    return None


def old_primary(service: Service, taken: int, epoch: int) -> str:
    """One line with what to do where Kafka has a newer generation than Postgres."""
    return (
        f"Kafka has generation {generation_of(taken)} of the {service.name}, Postgres only {generation_of(epoch)}: "
        f"it is an old primary that must be stopped, or was restored from an older copy; {WHAT_TO_DO}"
    )
