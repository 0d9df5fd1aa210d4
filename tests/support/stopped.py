"""A server that does not answer for a while."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stopped(process: subprocess.Popen[Any]) -> Iterator[None]:
    """SIGSTOP for the duration of the block."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)
