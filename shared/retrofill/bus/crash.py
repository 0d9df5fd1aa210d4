"""Named crash points around commits, for the tests that kill or stop: nothing happens unless a setting names one."""

from __future__ import annotations

import os
import signal

_armed: str | None = None
_how = signal.SIGKILL
STOP = ":stop"


def arm(name: str | None) -> None:
    """Kill this process when it reaches the point ``name``, or with ``name:stop`` stop it there, once."""
    global _armed, _how
    _how = signal.SIGSTOP if name is not None and name.endswith(STOP) else signal.SIGKILL
    _armed = None if name is None else name.removesuffix(STOP)


def crash_point(name: str) -> None:
    """Die here, as if the power went, or stand still until woken, where this point is the one that is armed."""
    global _armed
    if _armed == name:
        _armed = None
        os.kill(os.getpid(), _how)
