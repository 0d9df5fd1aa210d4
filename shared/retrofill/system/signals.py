"""Handles signals in a thread.

A handler interrupts the main thread, also inside of another handler: what takes a lock there may wait
for itself, as ``threading.Event.set`` does when the next signal comes.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Callable, Sequence


def on_signals(numbers: Sequence[int], work: Callable[[int], object]) -> None:
    """Call ``work`` with the number of each of these signals. Call this once, from the main thread."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)

    def serve() -> None:
        while True:
            number = os.read(reads, 1)[0]
            if number in numbers:
                work(number)

    for number in numbers:
        signal.signal(number, _leave)
    # Written whichever thread gets the signal: the main one may wait for a lock, and not be woken. If the
    # pipe is full, there is enough to do.
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    # Python's pools end their processes with SIGTERM, also before they do anything, and the pipe is this process's. Masks
    # are of threads, and all of this is called in the one that forks.
    masks = threading.local()

    def hold() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def let() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def let_in_child() -> None:
        _leave_to_default(numbers)
        let()

    os.register_at_fork(before=hold, after_in_parent=let, after_in_child=let_in_child)
    threading.Thread(target=serve, name="signals", daemon=True).start()


def _leave_to_default(numbers: Sequence[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: object) -> None:
    """The thread does the work."""
