"""The process around a driver: how it ends, and how it notices that its host is gone."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable

import structlog

from retrofill.tracing import flush

log = structlog.get_logger(__name__)
INTERRUPT_SECONDS = 1.5
PR_SET_PDEATHSIG = 1
# The exit status of a driver that ended because its lease did.
LEASE_OVER = 75


class Ending:
    """Ends the process at once, after trying for a moment to end the work that it started elsewhere."""

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self._leave = leave
        self._once = threading.Lock()
        self.silence: Callable[[], object] | None = None
        self.tell: Callable[[str], object] | None = None
        self.work: Callable[[], object] | None = None

    def end(self, why: str, status: int = 1) -> None:
        """End the started work (best effort, limited in time) and the process. The first call wins."""
        if not self._once.acquire(blocking=False):
            return
        log.log(logging.WARNING if status else logging.INFO, "driver_ends", why=why)
        if self.silence is not None:
            # Tasks fail when their work is ended, and that must not be told as the run's failure.
            self.silence()
        if self.tell is not None and status:
            self.tell(why)
        last = [each for each in (self.work, flush) if each is not None]
        stopper = threading.Thread(target=_quietly, args=last, daemon=True)
        stopper.start()
        stopper.join(INTERRUPT_SECONDS)
        self._leave(status)

    def end_now(self, why: str) -> None:
        """End the process without a try of anything: the lease is over."""
        log.error("driver_ends_now", why=why)
        self._leave(LEASE_OVER)


def end_with_host(ending: Ending) -> None:
    """SIGTERM ends the driver, and so does the end of its parent. Only the main thread may call this."""
    parent = os.getppid()

    def ended(*_: object) -> None:
        # In a thread: a signal's handler runs in the middle of whatever the main thread holds.
        threading.Thread(target=ending.end, args=("told by a signal",), daemon=True).start()

    def orphaned(*_: object) -> None:
        # Linux sends it when the thread that started us ends, too; only a parent that changed is one that is gone.
        if os.getppid() != parent:
            ended()

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGHUP, orphaned)
    # A second line only: where there is no such call, the end of the input is noticed all the same.
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGHUP)


def _quietly(*works: Callable[[], object]) -> None:
    for work in works:
        try:
            work()
        except Exception as e:  # noqa: BLE001 - the process ends anyway, and a later attempt ends this work again
            log.warning("work_not_interrupted", error=str(e))
