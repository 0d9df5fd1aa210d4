"""Notifications of Postgres. They are only hints: polls find whatever a crash or a lost connection loses.

In a whole Postgres cluster, only one transaction that contains a ``NOTIFY`` can commit at a time,
and the others wait until it is on disk. So notifications are sent after a commit: at once in this process,
to others coalesced, in transactions of their own (``docs/decisions/notify-after-commit.md``).
"""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Iterable, Sequence

import psycopg
from psycopg import sql

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill_core.store.engine import connect

log = get_log(__name__)
# Minimum time between two transactions; notifications in between are coalesced.
GAP_SECONDS = 0.005
RECONNECT_SECONDS = 1.0
Notification = tuple[str, str]

_installed: Announcer | None = None


class Announcer(threading.Thread):
    """Sends the notifications of one process; its own are delivered by ``on_notification``.

    ``concerns_others(channel)``: whether another process may be waiting for them. If that turns out
    wrong, its fallback poll finds the work.
    """

    def __init__(
        self,
        dsn: str,
        name: str,
        on_notification: Callable[[str, str], None],
        concerns_others: Callable[[str], bool] = lambda _: True,
    ) -> None:
        super().__init__(name="announcer", daemon=True)
        self._dsn = dsn
        self._name = f"{name}-announcer"
        self._on_notification = on_notification
        self._concerns_others = concerns_others
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._waiting: dict[Notification, None] = {}
        # The sending session, whose notifications this process has already handled.
        self.pid: int | None = None

    def announce(self, notifications: Iterable[Notification]) -> None:
        """Deliver (channel, payload) pairs here and queue them for others; from any thread."""
        new = dict.fromkeys(notifications)
        for channel, payload in new:
            self._on_notification(channel, payload)
        sent = {one: None for one in new if self._concerns_others(one[0])}
        if not sent:
            return
        with self._lock:
            self._waiting |= sent
        self._woken.set()

    def run(self) -> None:
        """Send until stopped, reconnecting after errors."""
        while not self._stopping.is_set():
            try:
                # Notifications may be lost in a server crash; a fast commit frees the lock sooner.
                with connect(self._dsn, self._name, autocommit=True, options="-c synchronous_commit=off") as conn:
                    self.pid = conn.info.backend_pid
                    self._send_from(conn)
            except psycopg.Error as e:
                log.warning("announcer_waits", error=first_line(e))
                self._stopping.wait(RECONNECT_SECONDS)

    def _send_from(self, conn: psycopg.Connection) -> None:
        while not self._stopping.is_set():
            self._woken.wait()
            self._woken.clear()
            with self._lock:
                sending, self._waiting = self._waiting, {}
            if sending:
                try:
                    notify(conn, sending)
                except psycopg.Error:
                    with self._lock:
                        self._waiting = sending | self._waiting
                    self._woken.set()
                    raise
                self._stopping.wait(GAP_SECONDS)

    def stop(self) -> None:
        """End the daemon thread at its next wake-up, without waiting for it."""
        self._stopping.set()
        self._woken.set()


def notify(conn: psycopg.Connection, notifications: Iterable[Notification]) -> None:
    """Send all notifications in one statement."""
    pairs = list(notifications)
    conn.execute(
        "SELECT pg_notify(c, p) FROM unnest(%s::text[], %s::text[]) AS n(c, p)",
        [[channel for channel, _ in pairs], [payload for _, payload in pairs]],
    )


def install(announcer: Announcer) -> None:
    """Make ``announcer`` this process's."""
    global _installed
    _installed = announcer


def announce(notifications: Iterable[Notification]) -> None:
    """Send ``notifications``, after the commit; does nothing without an installed announcer."""
    if _installed is not None:
        _installed.announce(notifications)


NOTIFY_WAIT_SECONDS = 5.0


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
