"""Tells a driver which of its reports are durable, from a thread: a driver that is stopped reads nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Acknowledging:
    """Of one attempt's driver. Reports become durable in the order of their numbers."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._durable = self._said = 0
        # The last heartbeats that renewed the lease, though they are not durable.
        self._renewed = self._told = 0
        self._why: str | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def on_delivery(self, number: int) -> Callable[[str | None], None]:
        """Returns what is to be called once the report with this number is durable, or with why it never will be."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._tell, name="acknowledging", daemon=True)
                self._thread.start()

        def delivered(why: str | None) -> None:
            with self._changed:
                if why is None:
                    self._durable = max(self._durable, number)
                self._why = self._why or why
                self._changed.notify_all()

        return delivered

    def wait_until_durable(self, number: int) -> bool:
        """Wait for the report with this number, and so for those before it. Returns whether it is durable.

        It is not if it never will be, or if the driver has ended meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._durable >= number or self._stopped or self._why is not None)
            return self._durable >= number

    def renewed(self, number: int) -> None:
        """The heartbeat with this number, which is not durable, has renewed the lease."""
        with self._changed:
            self._renewed = max(self._renewed, number)
            self._changed.notify_all()

    def undelivered(self, why: str) -> None:
        """A report cannot be published."""
        self.on_delivery(0)(why)

    def stop(self) -> None:
        """The driver exited, or is done with the attempt."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _tell(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_news)
                if self._stopped:
                    return
                why, said, told = self._why, self._said, self._told
                self._said, self._told = self._durable, self._renewed
                durable, renewed = self._said, self._told
            if why is not None:
                # The driver ends itself: its later reports would follow a gap.
                self._send({"undelivered": why})
                return
            if durable > said:
                self._send({"acknowledged": durable})
            if renewed > told:
                self._send({"renewed": renewed})

    def _has_news(self) -> bool:
        return self._stopped or self._why is not None or self._durable > self._said or self._renewed > self._told
