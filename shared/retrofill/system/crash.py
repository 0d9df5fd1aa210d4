"""Named crash points around commits, for tests; no-ops unless a setting names one."""

from __future__ import annotations

import signal
import threading

_armed: str | None = None
_signal = signal.SIGKILL
_passes = 0
STOP = ":stop"


def arm(name: str | None) -> None:
    """Kill this process at crash point ``name``; ``name:stop`` stops it there, once.

    ``name@3``: the third time it gets there.
    """
    global _armed, _signal, _passes
    _signal = signal.SIGSTOP if name is not None and name.endswith(STOP) else signal.SIGKILL
    point, _, times = (name or "").replace(STOP, "").partition("@")
    _passes = int(times or 1)
    _armed = point or None


def crash_point(name: str) -> None:
    """Kill or stop this process if ``name`` is armed."""
    global _armed, _passes
    if _armed != name:
        return
    _passes -= 1
    if _passes <= 0:
        _armed = None
        # Sent to this thread: if another one received it, this one would run a few steps further.
        signal.pthread_kill(threading.get_ident(), _signal)
