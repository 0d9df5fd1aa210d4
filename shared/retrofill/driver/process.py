"""A driver's process: how it ends, and how it notices that its host has exited."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Callable, NoReturn

from retrofill.log import get_log
from retrofill.system.processes import on_signals
from retrofill.tracing import flush

log = get_log(__name__)
INTERRUPT_SECONDS = 1.5
REAP_SECONDS = 1.0
PR_SET_PDEATHSIG = 1
# The exit status of a driver whose lease ended.
LEASE_OVER = 75


class Ending:
    """Ends the process, after briefly trying to end the work that it started elsewhere."""

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self.leave = leave
        self._once = threading.Lock()
        self.silence: Callable[[], object] | None = None
        self.tell: Callable[[str, bool], object] | None = None
        self.work: Callable[[], object] | None = None

    def end(self, why: str, status: int = 1, *, shared: bool = False) -> None:
        """End the started work (best effort, with a time limit) and the process.

        Only the first call has an effect. ``shared``: the Spark server is lost, which other attempts use, too.
        """
        if not self._once.acquire(blocking=False):
            return
        log.log(logging.WARNING if status else logging.INFO, "driver_ends", why=why)
        if self.silence is not None:
            # Interrupted tasks fail, which must not be reported as the run's failure.
            self.silence()
        if self.tell is not None and status:
            self.tell(why, shared)
        last = [each for each in (self.work, flush) if each is not None]
        stopper = threading.Thread(target=_quietly, args=last, daemon=True)
        stopper.start()
        stopper.join(INTERRUPT_SECONDS)
        self.leave(status)

    def end_now(self, why: str) -> None:
        """End the process without any cleanup, because the lease is over."""
        log.error("driver_ends_now", why=why)
        self.leave(LEASE_OVER)


def end_with_host(ending: Ending) -> None:
    """End the driver on SIGTERM and when its parent exits. Call from the main thread."""
    parent = os.getppid()

    def end(number: int) -> None:
        # Linux also sends SIGHUP when the parent's thread that started us ends: check the parent.
        if number == signal.SIGTERM or os.getppid() != parent:
            ending.end("ended by a signal")

    on_signals((signal.SIGTERM, signal.SIGHUP), end)
    hang_up_with_parent()


def hang_up_with_parent() -> None:
    """Have this process get SIGHUP when its parent exits, if the system can: the end of the input is noticed in any case."""
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGHUP)


def end_children() -> None:
    """End the processes of pools that user code left, as Python does at its exit, which a driver skips."""
    if (processes := sys.modules.get("multiprocessing.process")) is None:
        return
    # A pool starts others for those that end.
    processes.BaseProcess.start = _refuse
    for child in processes.active_children():
        with suppress(Exception):  # user code may have changed it
            child.kill()
    for child in processes.active_children():
        child.join(REAP_SECONDS)


def _refuse(_: object) -> NoReturn:
    raise RuntimeError("the attempt is over")


def _quietly(*works: Callable[[], object]) -> None:
    for work in works:
        try:
            work()
        except Exception as e:  # noqa: BLE001 - the process ends anyway, and the next attempt ends this work
            log.warning("work_not_interrupted", error=str(e))
