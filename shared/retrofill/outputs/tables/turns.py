"""Publishers of one table take turns where its commits conflict, whatever rows they replace, and try for a limited time
before the rest is left to a later publisher.

What was accepted fails only for what the output itself refuses for ever. Somebody else's commit, a catalog or a
directory that is away are no such refusals.

Turns are among the drivers of one machine. They only save tries: the table itself decides which commit is valid.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, TypeVar

from retrofill.errors import first_line
from retrofill.log import get_log

log = get_log(__name__)
SECONDS = 60.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0
T = TypeVar("T")


class NotNow(Exception):
    """The output cannot be published now. Its cause says why, and a later publisher tries it again."""


class Patience:
    """Of one attempt. Once it is used up, the next outputs are tried once each, until one is published."""

    def __init__(self) -> None:
        self._used_up = False

    def retry(self, output: str, work: Callable[[int], T], is_refusal: Callable[[Exception], bool]) -> T:
        """Call ``work`` with the number of the try, from 1, until it returns.

        Raises its error if that is a refusal for ever, else ``NotNow`` after the last try.
        """
        until = time.monotonic() + (0.0 if self._used_up else SECONDS)
        tries = 0
        while True:
            tries += 1
            try:
                found = work(tries)
            except Exception as e:
                if is_refusal(e):
                    raise
                log.warning("publication_waits", output=output, tries=tries, error=first_line(e))
                left = until - time.monotonic()
                if left <= 0:
                    self._used_up = True
                    raise NotNow(f"{output} cannot be published now") from e
            else:
                self._used_up = False
                return found
            # Those that met in a conflict must not meet again.
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1), MAX_PAUSE_SECONDS) * random.uniform(0.5, 1.5)
            time.sleep(min(pause, left))


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
