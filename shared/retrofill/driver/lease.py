"""A run's lease as its driver sees it: a heartbeat every fifth of it, and the end of the process before it may be over.

The run-starter counts the lease from the handling of a heartbeat, which is after its sending: whoever ends itself one
lease after it *sent* the last heartbeat that was acknowledged is gone before anybody else may start the run again.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

SHARE = 5
Acknowledged = Callable[[], object]


class Lease:
    """Heartbeats of one attempt. ``expired`` is called, once, from the lease's thread and must end the process;
    ``renewed`` hears every new end of the lease.

    ``alarm`` is a second line that needs no thread of Python's: the kernel's timer ends the process, also one that is
    stuck in native code or that was stopped and is woken up, before it runs anything more.
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
        self._acknowledged = False
        self._stopped = False
        self._ends_at = clock() + seconds
        self._next_beat = clock()

    def start(self) -> None:
        """Send the first heartbeat, and go on."""
        self.beat()
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def wait_acknowledged(self) -> None:
        """Wait for the first acknowledgement; no user code may run before it."""
        with self._changed:
            self._changed.wait_for(lambda: self._acknowledged)

    def stop(self) -> None:
        """No more heartbeats: the attempt ended and said so."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._alarm(0)

    def beat(self) -> float:
        """Send a heartbeat if one is due; returns the seconds until there is something to do, 0 after the end."""
        now = self._clock()
        if now >= self._ends_at:
            return 0.0
        if now >= self._next_beat:
            self._next_beat = now + self._seconds / SHARE
            self._send(lambda: self._on_acknowledged(now))
        return max(0.001, min(self._next_beat, self._ends_at) - now)

    def _on_acknowledged(self, sent_at: float) -> None:
        with self._changed:
            # One that comes after the end, or after the stop, renews nothing.
            if self._stopped or self._clock() >= self._ends_at:
                return
            self._ends_at = max(self._ends_at, sent_at + self._seconds)
            self._acknowledged = True
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
                    # Woken early, an unchanged deadline is simply looked at again.
                    self._changed.wait(pause)
                    continue
            self._expired()
            return


def kernel_alarm(seconds: float) -> None:
    """SIGALRM, whose default is to end the process, after so many seconds; 0 takes it back."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.0))
