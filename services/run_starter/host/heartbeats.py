"""Heartbeats that Kafka has not acknowledged: their leases are renewed in Postgres, so that an outage of Kafka ends nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection

from sqlalchemy import Engine

from retrofill.log import get_log
from retrofill_core.store import attempts
from run_starter.executors import Key, OnDelivery

log = get_log(__name__)
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
