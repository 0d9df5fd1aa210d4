"""Wake-ups after a commit: this process's at once, those of others by ``NOTIFY``, coalesced and in a transaction of its own.

Postgres lets one transaction of the whole cluster at a time commit with a ``NOTIFY`` in it, and holds the others up until that one
is on disk. So none is in the transaction of the facts (``docs/decisions/notify-after-commit.md``). What a crash in between
loses is found by the polls that stand behind each wake-up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import psycopg
import structlog

from retrofill.errors import first_line
from retrofill.store.engine import connect

log = structlog.get_logger(__name__)
# At most one transaction in so many seconds: the first goes at once, those that follow share the next.
GAP_SECONDS = 0.005
RECONNECT_SECONDS = 1.0
Notification = tuple[str, str]

_here: Announcer | None = None


class Announcer(threading.Thread):
    """Sends the notifications of one process. ``heard``: what this process does about its own."""

    def __init__(self, dsn: str, name: str, heard: Callable[[str, str], None]) -> None:
        super().__init__(name="announcer", daemon=True)
        self._dsn = dsn
        self._name = f"{name}-announcer"
        self._heard = heard
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._waiting: dict[Notification, None] = {}
        # The session that notifies: its own notifications are known already.
        self.pid: int | None = None

    def announce(self, notifications: Iterable[Notification]) -> None:
        """Wake those who wait for ``notifications`` (channel, payload); from any thread."""
        new = dict.fromkeys(notifications)
        for channel, payload in new:
            self._heard(channel, payload)
        with self._lock:
            self._waiting |= new
        self._woken.set()

    def run(self) -> None:
        """Send until stopped, connecting again when the server goes away."""
        while not self._stopping.is_set():
            try:
                # Nothing here has to survive a crash of the server, and the lock is held until the commit is done.
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
        """End the thread at its next wake-up; it is a daemon and holds nothing."""
        self._stopping.set()
        self._woken.set()


def notify(conn: psycopg.Connection, notifications: Iterable[Notification]) -> None:
    """Notify in one statement."""
    pairs = list(notifications)
    conn.execute(
        "SELECT pg_notify(c, p) FROM unnest(%s::text[], %s::text[]) AS n(c, p)",
        [[channel for channel, _ in pairs], [payload for _, payload in pairs]],
    )


def install(announcer: Announcer) -> None:
    """From now on ``announcer`` is that of this process."""
    global _here
    _here = announcer


def announce(notifications: Iterable[Notification]) -> None:
    """Wake those who wait, once what they wait for is committed. Nothing happens in a process without an announcer."""
    if _here is not None:
        _here.announce(notifications)
