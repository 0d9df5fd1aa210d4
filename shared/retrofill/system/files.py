"""Files of the system: durable, private, or exchanged atomically.

A private folder is locked while its process lives; the kernel drops the lock. What nobody locks is removed by the next process
that makes one in the same place, and by each run-starter that starts. Pids would not do: containers share places, and
pids are used again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Iterable

SYNCS = 8


def sync(path: Path) -> None:
    """Sync a file's content or a directory's entries to disk. Raises ``OSError``."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_all(paths: Iterable[Path]) -> None:
    """Sync files and directories. Raises ``OSError``."""
    # In parallel: the file system then writes its journal once for many of them.
    with ThreadPoolExecutor(SYNCS) as threads:
        for _ in threads.map(sync, paths):
            continue


def sync_trees(tops: Iterable[Path]) -> None:
    """Sync directories and everything in them. Raises ``OSError``."""
    # A link has no content, and may lead nowhere until it is at its place; its directory is synced.
    sync_all(path for top in tops for path in (top, *top.rglob("*")) if not path.is_symlink())


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


# From linux/fs.h and fcntl.h.
RENAME_EXCHANGE = 2
AT_FDCWD = -100
# Of a kernel, file system or sandbox without the call.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)


def _system_call() -> Any:
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, AttributeError):
        return None


_renameat2 = _system_call()


def exchange(one: Path, other: Path) -> bool | None:
    """Exchange the two. Returns False if one does not exist, ``None`` if that is not possible here.

    Raises ``OSError``.
    """
    if _renameat2 is None:
        return None
    import ctypes

    if _renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.ENOENT:
        return False
    if code in _UNSUPPORTED:
        return None
    raise OSError(code, os.strerror(code), str(other))
