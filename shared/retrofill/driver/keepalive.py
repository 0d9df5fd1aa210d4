"""Keeps a Spark Connect session alive during its attempt.

By default, a server closes sessions that are idle for an hour, and a task may do other work for
longer than that.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Callable

from retrofill.errors import kind_and_line
from retrofill.log import get_log
from retrofill.spark.loss import condition

log = get_log(__name__)
TIMEOUT = "spark.connect.session.manager.defaultSessionTimeout"
SHARE = 4
UNKNOWN_SECONDS = 3600.0
_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class KeepAlive:
    """Sends the server a small request four times per session timeout."""

    def __init__(self, session: Any, first: Callable[[Any], object] = lambda _: None) -> None:
        """``first`` is called with the session before the first request, in the same thread."""
        self._session = session
        self._first = first
        self._stopped = threading.Event()
        threading.Thread(target=self._keep, name="keep-alive", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _keep(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause) and not self._session.client.is_closed:
            try:
                if pause == 0.0:
                    self._first(self._session)
                pause = seconds(self._session.conf.get(TIMEOUT)) / SHARE
            except Exception as e:  # noqa: BLE001 - users of the session get the error and handle it
                if not self._stopped.is_set():
                    log.warning("session_not_kept_alive", error=kind_and_line(e), condition=condition(e))
                pause = pause or UNKNOWN_SECONDS / SHARE


def seconds(text: str | None) -> float:
    """A duration in Spark's format (``60m``; without a unit: milliseconds).

    Invalid or 0 (no limit) is Spark's default.
    """
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text or "", re.IGNORECASE)
    unit = _UNITS.get(found[2].lower()) if found else None
    return (float(found[1]) * unit if found and unit else 0.0) or UNKNOWN_SECONDS
