"""Starts of our own processes: the command of a module, imports without garbage collections, and the file that says one is ready.

Collections take a sixth of a start, and find nothing.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def command_of(module: str, *arguments: str) -> list[str]:
    """The command by which this Python executes a module, as with ``-m``.

    Nothing is imported from the working directory: a user's ``queue.py`` there would replace Python's.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage in the block. What it imported stays, so that later collections skip it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def write_ready(home: Path, name: str, url: str) -> Path:
    """Write the file of this process, which contains its HTTP address. Returns its path, to be removed at the end."""
    # Commands import this module, and write no such file.
    import json

    folder = home.absolute() / "run"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{os.getpid()}.ready"
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps({"http": url}))
    # Renamed: whoever finds the file finds the address in it.
    draft.rename(path)
    return path
