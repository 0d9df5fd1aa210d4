"""Publishers of one table take turns where its commits conflict, whatever rows they replace.

Among the drivers of one machine. It only saves tries: the table itself decides which commit is valid.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from retrofill.log import get_log

log = get_log(__name__)
# A driver that is stopped in its turn holds up the others no longer than this.
WAIT_SECONDS, LOOK_SECONDS = 120.0, 0.05


@contextmanager
def turn(table: str) -> Iterator[None]:
    """Wait until no other driver here has its turn at the table, or for ``WAIT_SECONDS``."""
    try:
        lock = os.open(_file(table), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        log.warning("publishers_take_no_turns", table=table, error=str(e))
        yield
        return
    try:
        until = time.monotonic() + WAIT_SECONDS
        # The kernel takes the lock back from a process that ends.
        while not _locked(lock) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(lock)


def _file(table: str) -> Path:
    folder = Path(tempfile.gettempdir(), f"retrofill-turns-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / hashlib.sha256(table.encode()).hexdigest()[:32]


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
