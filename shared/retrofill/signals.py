"""Handles signals in a thread.

A handler interrupts the main thread, also inside of another handler: what takes a lock there may wait
for itself, as ``threading.Event.set`` does when the next signal comes.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Callable, Sequence


def on_signals(numbers: Sequence[int], work: Callable[[int], object]) -> None:
    """Call ``work`` with the number of each of these signals. Call this from the main thread."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)

    def note(number: int, _: object) -> None:
        # If the pipe is full, there is enough to do.
        with suppress(BlockingIOError):
            os.write(writes, bytes([number]))

    def serve() -> None:
        while True:
            work(os.read(reads, 1)[0])

    for number in numbers:
        signal.signal(number, note)
    threading.Thread(target=serve, name="signals", daemon=True).start()
