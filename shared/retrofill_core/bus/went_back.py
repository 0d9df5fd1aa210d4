"""Stops a service whose Postgres went back in time, before it decides anything on stale data.

Events are numbered, and relay takeovers counted, in Postgres before they reach Kafka. So a number
in Kafka that Postgres does not have was lost by Postgres
(``docs/decisions/postgres-went-back.md``).
"""

from __future__ import annotations

import threading

import psycopg
from sqlalchemy import Engine

from retrofill.log import get_log
from retrofill_core.bus.relay.cursor import Marks, read_marks
from retrofill_core.contract.topics import SERVICES, Service
from retrofill_core.settings import Settings
from retrofill_core.store.history import WHAT_TO_DO, PostgresWentBack, check_history
from retrofill_core.store.relays import relays

log = get_log(__name__)


class Guard:
    """Stops one process through ``stopping`` once Postgres went back; from any thread."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._reason: str | None = None

    def reason(self) -> str | None:
        """One line on why the service must not work, ``None`` if it may."""
        return self._reason

    def trip(self, reason: str) -> None:
        """Stop the service: Postgres went back."""
        if self._reason is None:
            self._reason = reason
            log.error("postgres_went_back", error=reason)
        self._stopping.set()

    def check(self, conn: psycopg.Connection) -> None:
        """Check a new connection. Raises ``PostgresWentBack``."""
        try:
            check_history(conn)
        except PostgresWentBack as e:
            self.trip(str(e))
            raise


def check_marks(settings: Settings, instance: str, engine: Engine) -> None:
    """At start, compare every service's marks in Kafka with Postgres.

    A service that published nothing in the lost time shows no sign of it, so each checks all.
    Raises ``PostgresWentBack``, ``KafkaException`` or a database error.
    """
    topics = {service.cursor_topic(settings.topic_prefix): service for service in SERVICES.values()}
    # Kafka first: whatever it has was in Postgres before.
    marks = read_marks(settings, topics, f"{instance}-cursor")
    with engine.connect() as conn:
        rows = relays(conn)
    for topic, found in marks.items():
        row = rows[topics[topic].name]
        if (reason := contradiction(topics[topic], found, batch=row.batch, epoch=row.epoch)) is not None:
            raise PostgresWentBack(reason)


def contradiction(service: Service, marks: Marks, *, batch: int, epoch: int) -> str | None:
    """One line with what to do if Kafka is ahead of Postgres' ``batch`` or ``epoch``."""
    for what, in_kafka, in_postgres in (("batch", marks.cursor, batch), ("relay epoch", marks.taken, epoch)):
        if in_kafka > in_postgres:
            return (
                f"Kafka has {what} {in_kafka} of the {service.name}, Postgres only {in_postgres}: "
                f"it was restored from an older copy; {WHAT_TO_DO}"
            )
    return None
