"""Named crash points around commits, for the tests that kill: nothing happens unless a setting names one."""

from __future__ import annotations

import os
import signal

_armed: str | None = None


def arm(name: str | None) -> None:
    """Kill this process when it reaches the point ``name``."""
    global _armed
    _armed = name


def crash_point(name: str) -> None:
    """Die here, as if the power went, where this point is the one that is armed."""
    if _armed == name:
        os.kill(os.getpid(), signal.SIGKILL)
