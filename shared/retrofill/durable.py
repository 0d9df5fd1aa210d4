"""fsync, so writes and renames survive a power failure."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SYNCS = 8


def sync(path: Path) -> None:
    """Sync a file's content or a directory's entries to disk. Raises ``OSError``."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(top: Path) -> None:
    """Sync a directory and everything in it. Raises ``OSError``."""
    # In parallel: the file system then writes its journal once for many files.
    with ThreadPoolExecutor(SYNCS) as threads:
        for _ in threads.map(sync, [top, *top.rglob("*")]):
            continue
