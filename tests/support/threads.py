"""Threads that cannot be started, as at the limit of a process or a machine."""

from __future__ import annotations

import threading

import pytest

LIMIT = "can't start new thread"


def fail_once(patch: pytest.MonkeyPatch, name: str) -> threading.Event:
    """Make the next start of a thread with this name fail. Returns what is set then."""
    failed, start = threading.Event(), threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == name and not failed.is_set():
            failed.set()
            raise RuntimeError(LIMIT)
        start(thread)

    patch.setattr(threading.Thread, "start", limited)
    return failed
