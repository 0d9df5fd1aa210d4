"""Health and readiness of a service, checked on each probe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import first_line

# Longer than the services' ``transaction_timeout`` in Postgres.
STUCK_SECONDS = 150.0
PROBE_SECONDS = 3.0
# Probes within this time of each other get the same answer.
FRESH_SECONDS = 1.0


@dataclass
class Health:
    """The checks of one service.

    ``busy_for``: how long the worker's current step has been running, in seconds. ``problems``: why
    shards cannot continue. ``relay``: why Kafka refuses events although it answers.
    """

    engine: Engine
    admin: Callable[[], AdminClient]
    threads: Sequence[threading.Thread]
    busy_for: Callable[[], float]
    problems: Callable[[], Mapping[str, str | None]]
    relay: Callable[[], str | None]
    # Why the service must not work on this Postgres.
    history: Callable[[], str | None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ready: Mapping[str, str | None] = field(default_factory=dict)
    _ready_at: float = float("-inf")

    def alive(self) -> dict[str, str | None]:
        """Problems that only a restart fixes: a thread that exited, or a stuck worker."""
        busy = self.busy_for()
        stuck = f"busy with one step for {busy:.0f} s" if busy > STUCK_SECONDS else None
        ended: dict[str, str | None] = {t.name: None if t.is_alive() else "the thread exited" for t in self.threads}
        return {**ended, "worker": stuck}

    def ready(self) -> Mapping[str, str | None]:
        """``alive``, and whether Postgres and Kafka answer and the work can continue."""
        with self._lock:
            if time.monotonic() - self._ready_at > FRESH_SECONDS:
                self._ready = {
                    **self.alive(),
                    **self.problems(),
                    "postgres": self._postgres(),
                    "kafka": self._kafka(),
                    "events": self.relay(),
                    "history": self.history(),
                }
                self._ready_at = time.monotonic()
            return self._ready

    def _postgres(self) -> str | None:
        try:
            with self.engine.connect() as conn:
                conn.execute(text(f"SET LOCAL statement_timeout = {int(PROBE_SECONDS * 1000)}"))
                conn.execute(text("SELECT 1"))
        except SQLAlchemyError as e:
            return first_line(e)
        return None

    def _kafka(self) -> str | None:
        try:
            self.admin().list_topics(timeout=PROBE_SECONDS)
        except KafkaException as e:
            return str(e.args[0].str() if e.args else e)
        return None
