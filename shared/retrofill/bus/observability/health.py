"""Whether a service is alive and able to work, by looking and not by remembering."""

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

# Longer than the longest transaction that Postgres lets a service have.
STUCK_SECONDS = 150.0
ANSWER_SECONDS = 3.0
# Probes that come faster than this get the same answer.
FRESH_SECONDS = 1.0


@dataclass
class Health:
    """The checks of one service.

    ``busy_for``: seconds that its worker's present step takes. ``troubles``: what keeps it from going on with its work.
    ``relay``: why events of the outbox cannot be published, though Kafka answers.
    """

    engine: Engine
    admin: Callable[[], AdminClient]
    threads: Sequence[threading.Thread]
    busy_for: Callable[[], float]
    troubles: Callable[[], Mapping[str, str | None]]
    relay: Callable[[], str | None]
    # Why nothing may be done on this Postgres at all.
    history: Callable[[], str | None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ready: Mapping[str, str | None] = field(default_factory=dict)
    _ready_at: float = float("-inf")

    def alive(self) -> dict[str, str | None]:
        """What only a restart would mend: a thread that ended, a worker that is stuck."""
        busy = self.busy_for()
        stuck = f"busy with one thing for {busy:.0f} s" if busy > STUCK_SECONDS else None
        ended: dict[str, str | None] = {t.name: None if t.is_alive() else "the thread ended" for t in self.threads}
        return {**ended, "worker": stuck}

    def ready(self) -> Mapping[str, str | None]:
        """Whether Postgres and Kafka answer just now, beside being alive."""
        with self._lock:
            if time.monotonic() - self._ready_at > FRESH_SECONDS:
                self._ready = {
                    **self.alive(),
                    **self.troubles(),
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
                conn.execute(text(f"SET LOCAL statement_timeout = {int(ANSWER_SECONDS * 1000)}"))
                conn.execute(text("SELECT 1"))
        except SQLAlchemyError as e:
            return first_line(e)
        return None

    def _kafka(self) -> str | None:
        try:
            self.admin().list_topics(timeout=ANSWER_SECONDS)
        except KafkaException as e:
            return str(e.args[0].str() if e.args else e)
        return None
