"""What was written or renamed survives a power cut only once the disk was told to keep it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SYNCS = 8


def sync(path: Path) -> None:
    """Keep a file's content, or the names in a folder. Raises ``OSError``."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(top: Path) -> None:
    """Keep a folder with all that is in it. Raises ``OSError``."""
    # All at once: the file system writes its journal once for many.
    with ThreadPoolExecutor(SYNCS) as threads:
        for _ in threads.map(sync, [top, *top.rglob("*")]):
            continue
