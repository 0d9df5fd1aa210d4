"""The thread that listens to Postgres: notifications wake those who wait, and a poll stands behind each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import psycopg
import structlog
from psycopg import sql

from retrofill.errors import first_line
from retrofill.store.engine import connect

log = structlog.get_logger(__name__)
NOTIFY_WAIT_SECONDS = 5.0
RECONNECT_SECONDS = 1.0


class Listener(threading.Thread):
    """Calls ``heard(channel, payload)`` for each notification, and ``heard("", "")`` after every (re)connect.

    ``known``: whether those of a session are known already, because it is this process's own.
    """

    def __init__(
        self,
        dsn: str,
        name: str,
        channels: Sequence[str],
        heard: Callable[[str, str], None],
        known: Callable[[int], bool] = lambda _: False,
    ) -> None:
        super().__init__(name="listener", daemon=True)
        self._dsn = dsn
        self._name = name
        self._channels = channels
        self._heard = heard
        self._known = known
        self._stopping = threading.Event()

    def run(self) -> None:
        """Listen until stopped, connecting again when the server goes away."""
        while not self._stopping.is_set():
            try:
                with connect(self._dsn, f"{self._name}-listener", autocommit=True) as conn:
                    self._listen(conn)
            except psycopg.Error as e:
                log.warning("listener_waits", error=first_line(e))
                self._stopping.wait(RECONNECT_SECONDS)

    def _listen(self, conn: psycopg.Connection) -> None:
        for channel in self._channels:
            conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        # Whatever was notified while nobody listened is found by looking.
        self._heard("", "")
        while not self._stopping.is_set():
            for notify in conn.notifies(timeout=NOTIFY_WAIT_SECONDS):
                if not self._known(notify.pid):
                    self._heard(notify.channel, notify.payload)
                if self._stopping.is_set():
                    return

    def stop(self) -> None:
        """End the thread at its next wake-up; it is a daemon and holds nothing."""
        self._stopping.set()
