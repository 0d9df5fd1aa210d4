"""Starts of our own processes: the command of a module, and imports without garbage collections.

Collections take a sixth of a start, and find nothing.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
