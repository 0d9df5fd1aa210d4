"""A service's guard against a Postgres that went back in time: it ends the service, loudly, before anything is decided on it.

Every event is numbered in Postgres before it is in Kafka, and every take-over of a relay is counted there before Kafka is told.
So a number in Kafka that Postgres does not know of is one that Postgres has lost (``docs/decisions/postgres-went-back.md``).
"""

from __future__ import annotations

import threading

import psycopg
import structlog
from sqlalchemy import Engine

from retrofill.bus.relay.cursor import Marks, read_marks
from retrofill.contract.topics import SERVICES, Service
from retrofill.settings import Settings
from retrofill.store.history import WHAT_TO_DO, PostgresWentBack, check_history
from retrofill.store.relays import relays

log = structlog.get_logger(__name__)


class Guard:
    """Of one process. ``reason``: why it must not work; from any thread. ``stopping`` is set with it."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._reason: str | None = None

    def reason(self) -> str | None:
        """Why the service ends, in a line."""
        return self._reason

    def trip(self, reason: str) -> None:
        """Postgres went back: end the service."""
        if self._reason is None:
            self._reason = reason
            log.error("postgres_went_back", error=reason)
        self._stopping.set()

    def check(self, conn: psycopg.Connection) -> None:
        """Of every new connection. Raises ``PostgresWentBack``."""
        try:
            check_history(conn)
        except PostgresWentBack as e:
            self.trip(str(e))
            raise


def check_marks(settings: Settings, instance: str, engine: Engine) -> None:
    """Before a service begins: the marks of all, since a service that published nothing in the time that was lost has no sign of
    its own. Raises ``PostgresWentBack``, ``KafkaException`` or a database error."""
    topics = {service.cursor_topic(settings.topic_prefix): service for service in SERVICES.values()}
    # Kafka first: what is there was in Postgres before.
    marks = read_marks(settings, topics, f"{instance}-cursor")
    with engine.connect() as conn:
        rows = relays(conn)
    for topic, found in marks.items():
        row = rows[topics[topic].name]
        if (reason := contradiction(topics[topic], found, batch=row.batch, epoch=row.epoch)) is not None:
            raise PostgresWentBack(reason)


def contradiction(service: Service, marks: Marks, *, batch: int, epoch: int) -> str | None:
    """What Kafka has and Postgres cannot have lost otherwise, in a line that says what to do."""
    for what, there, here in (("batch", marks.cursor, batch), ("relay epoch", marks.taken, epoch)):
        if there > here:
            return (
                f"Kafka has {what} {there} of the {service.name}, Postgres knows of {here} at most: it was restored from an older "
                f"copy; {WHAT_TO_DO}"
            )
    return None
