"""Listens for Postgres notifications. They are only hints: polls find what was missed."""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Sequence

import psycopg
from psycopg import sql

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill_core.store.engine import connect

log = get_log(__name__)
NOTIFY_WAIT_SECONDS = 5.0
RECONNECT_SECONDS = 1.0


class Listener(threading.Thread):
    """Calls ``on_notification(channel, payload)``, with empty strings after every (re)connect.

    ``is_own(pid)``: whether a session belongs to this process; its notifications are ignored.
    """

    def __init__(
        self,
        dsn: str,
        name: str,
        channels: Sequence[str],
        on_notification: Callable[[str, str], None],
        is_own: Callable[[int], bool] = lambda _: False,
    ) -> None:
        super().__init__(name="listener", daemon=True)
        self._dsn = dsn
        self._name = name
        self._channels = channels
        self._on_notification = on_notification
        self._is_own = is_own
        self._stopping = threading.Event()

    def run(self) -> None:
        """Listen until stopped, reconnecting after errors."""
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
        # Notifications may have been missed while disconnected.
        self._on_notification("", "")
        with selectors.DefaultSelector() as selector:
            selector.register(conn, selectors.EVENT_READ)
            while not self._stopping.is_set():
                for notify in conn.notifies(timeout=0):
                    if not self._is_own(notify.pid):
                        self._on_notification(notify.channel, notify.payload)
                # Not by the timeout above: psycopg wakes up ten times a second for it.
                selector.select(NOTIFY_WAIT_SECONDS)

    def stop(self) -> None:
        """End the daemon thread at its next wake-up, without waiting for it."""
        self._stopping.set()
