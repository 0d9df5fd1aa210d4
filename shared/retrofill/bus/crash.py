"""Named crash points around commits, for the tests that kill or stop: nothing happens unless a setting names one."""

from __future__ import annotations

import signal
import threading

_armed: str | None = None
_how = signal.SIGKILL
_passes = 0
STOP = ":stop"


def arm(name: str | None) -> None:
    """Kill this process when it reaches the point ``name``, or with ``name:stop`` stop it there, once.

    ``name@3`` means the third time that it gets there.
    """
    global _armed, _how, _passes
    _how = signal.SIGSTOP if name is not None and name.endswith(STOP) else signal.SIGKILL
    point, _, times = (name or "").removesuffix(STOP).partition("@")
    _passes = int(times or 1)
    _armed = point or None


def crash_point(name: str) -> None:
    """Die here, as if the power went, or stand still until woken, where this point is the one that is armed."""
    global _armed, _passes
    if _armed != name:
        return
    _passes -= 1
    if _passes <= 0:
        _armed = None
        # To this thread: another one that took it would let this one go a few steps further.
        signal.pthread_kill(threading.get_ident(), _how)
