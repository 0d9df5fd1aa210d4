"""Imports of a service without garbage collections: a sixth of its start, and none finds anything."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage in the block. What it imported stays, so that later collections skip it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
