"""Private folders, which may hold secrets: none outlives its process for long, even one that is killed.

A folder is locked while its process lives; the kernel drops the lock. What nobody locks is removed by the next process
that makes one in the same place, and by each run-starter that starts. Pids would not do: containers share places, and
pids are used again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_PREFIX = "retrofill-private-"
# Not swept: its process is about to lock it.
_NEW = ".retrofill-private-"


class PrivateFolder:
    """A new folder in the system's place for temporary files, with all that is put into it."""

    def __init__(self, place: Path | None = None) -> None:
        sweep(place)
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=place))
        self._lock = os.open(new, os.O_RDONLY)
        # Some file systems have no locks. Nothing is swept there.
        with suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = new.with_name(_PREFIX + new.name[len(_NEW) :])
        new.rename(self.path)

    def remove(self) -> None:
        """Remove it. Called again, it does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.remove()


def sweep(place: Path | None = None) -> None:
    """Remove the folders of processes that are gone."""
    with suppress(OSError):  # it cannot be listed
        for path in (place or Path(tempfile.gettempdir())).iterdir():
            if path.name.startswith(_PREFIX):
                _sweep(path)


def _sweep(path: Path) -> None:
    # It is gone, locked, another user's, or a link.
    with suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
