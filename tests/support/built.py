"""Programs that tests build once for all sessions, into the cache folder."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

from retrofill_core.settings import Settings
from retrofill_tools.stack.maven import cache_folder


def built(name: str, build: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache. Without it, ``build`` makes it, or skips the test.

    Concurrent test processes build it once.
    """
    folder = cache_folder(Settings()) / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name.partition('-')[0]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build(folder)
    return folder
