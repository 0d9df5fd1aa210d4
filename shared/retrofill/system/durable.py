"""fsync, so writes and renames survive a power failure."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterable

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
