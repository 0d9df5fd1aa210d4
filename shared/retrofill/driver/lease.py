"""A run's lease in its driver: sends heartbeats, and ends the process before the lease ends.

The permission to begin says how much of the lease was left after it was asked for. Later, the
run-starter counts the lease from handling a heartbeat, which is after it was sent. A driver that
exits when the time left has passed since it *asked*, or one lease after it *sent* its last
acknowledged heartbeat, has therefore exited before the run may be started again.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from typing import Callable

SHARE = 5
# A server that is away for nearly the whole of a long lease ends nothing.
MOST_SECONDS = 5.0
# The share of a lease, and the most seconds, by which a process that lives ends itself before the kernel does: how it
# ends tells whether nobody heard it, or it was stuck.
EARLY_SHARE, MOST_EARLY_SECONDS = 20, 1.0
Acknowledged = Callable[[], object]


class Lease:
    """Heartbeats of one attempt.

    ``expired`` is called once, from the lease's thread, and must end the process. ``renewed`` gets
    each new end of the lease. ``alarm`` is a fallback without a Python thread: the kernel's timer
    ends the process even if it is stuck in native code or was stopped and resumed. It is left to the
    timer, too, if the thread could not send heartbeats: the process is then lost, otherwise unheard.
    """

    def __init__(
        self,
        send: Callable[[Acknowledged], object],
        seconds: float,
        expired: Callable[[], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        alarm: Callable[[float], object] | None = None,
        renewed: Callable[[float], object] | None = None,
    ) -> None:
        self._send = send
        self._seconds = seconds
        self._expired = expired
        self._clock = clock
        self._alarm = alarm or kernel_alarm
        self._renewed = renewed
        self._changed = threading.Condition()
        self._stopped = False
        # Unknown until the permission to begin; before that, nothing runs that it could end.
        self._ends_at = math.inf
        self._pause = min(seconds / SHARE, MOST_SECONDS)
        self._early = min(seconds / EARLY_SHARE, MOST_EARLY_SECONDS)
        self._next_beat = clock() + self._pause

    def start(self) -> None:
        """Send heartbeats in a thread. The first is due after a fifth of the lease, or five seconds."""
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def last_until(self, ends_at: float) -> bool:
        """The lease lasts at least until ``ends_at``. Returns whether its end is still to come."""
        with self._changed:
            if self._ends_at != math.inf:
                ends_at = max(ends_at, self._ends_at)
            left = ends_at - self._clock()
            if left <= self._early:
                return False
            self._ends_at = ends_at
            self._changed.notify_all()
            self._alarm(left)
        if self._renewed is not None:
            self._renewed(ends_at)
        return True

    def stop(self) -> None:
        """Stop the heartbeats, after the attempt's end was reported."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._alarm(0)

    def beat(self) -> float:
        """Send a heartbeat if one is due.

        Returns the seconds until the next call is needed, 0 if the lease ended.
        """
        now = self._clock()
        ends_at = self._ends_at - self._early
        if now >= ends_at and now > self._next_beat + self._pause:
            # It was stuck, so the kernel is to end it.
            ends_at = self._ends_at
        if now >= ends_at:
            return 0.0
        if now >= self._next_beat:
            self._next_beat = now + self._pause
            self._send(lambda: self._on_acknowledged(now))
        return max(0.001, min(self._next_beat, ends_at) - now)

    def _on_acknowledged(self, sent_at: float) -> None:
        with self._changed:
            # A late acknowledgement renews nothing.
            if self._stopped or self._ends_at == math.inf or self._clock() >= self._ends_at:
                return
            self._ends_at = max(self._ends_at, sent_at + self._seconds)
            self._changed.notify_all()
            self._alarm(self._ends_at - self._clock())
            ends_at = self._ends_at
        if self._renewed is not None:
            self._renewed(ends_at)

    def _keep(self) -> None:
        while True:
            pause = self.beat()
            with self._changed:
                if self._stopped:
                    return
                if pause > 0:
                    self._changed.wait(pause)
                    continue
            self._expired()
            return


def kernel_alarm(seconds: float) -> None:
    """Send SIGALRM, which ends the process by default, after ``seconds``; 0 cancels it."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.0))
