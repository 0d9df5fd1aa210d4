"""Reads the output of a child that leads a process group, kills the group when it exits, and handles signals in a thread.

End of file on a pipe is not enough: a background process of the child may keep the other end open
forever.

A handler interrupts the main thread, also inside of another handler: what takes a lock there may wait
for itself, as ``threading.Event.set`` does when the next signal comes.
"""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import threading
from contextlib import suppress
from typing import IO, Callable, Iterator, Sequence

# In the environment of all processes of a stack, drivers too: what has lost its parent is found by it.
STACK = "RETROFILL_STACK"
CHUNK = 65_536
# Limit on reading the pipe after the child exited: a process that left its group may keep writing.
MAX_LEFT = 1_048_576


def await_exit(pid: int) -> None:
    """Wait until the child exits, then kill the rest of its group.

    The caller must reap the child.
    """
    # Until the child is reaped, its pid, which is also the group's id, cannot be reused.
    with suppress(ChildProcessError, ProcessLookupError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)


def lines_until_exit(process: subprocess.Popen[str], pipe: IO[str], longest: int | None = None) -> Iterator[str]:
    """Yield lines, including newlines, from the child's pipe until it exits, then kill its group.

    A line of more than ``longest`` characters comes in pieces, of which only the last has a newline.
    Nothing else may read from the pipe.
    """
    # First: at the limit of files, nothing waits for the child yet.
    with selectors.DefaultSelector() as selector:
        exited, exits = os.pipe()
        watcher = threading.Thread(target=_watch, args=(process.pid, exits), name="watch-exit", daemon=True)
        try:
            watcher.start()
        except RuntimeError:
            # At the limit of threads.
            os.close(exits)
            os.close(exited)
            raise
        try:
            yield from _lines(_decoded(_chunks(selector, pipe.fileno(), exited)), longest)
        finally:
            watcher.join()
            os.close(exited)
            pipe.close()


def _decoded(chunks: Iterator[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield from (decoder.decode(chunk) for chunk in chunks)
    yield decoder.decode(b"", final=True)


def _lines(texts: Iterator[str], longest: int | None) -> Iterator[str]:
    # Joined once: to append to a text copies it.
    parts: list[str] = []
    length = 0
    for text in texts:
        *lines, rest = text.split("\n")
        for line in lines:
            yield "".join((*parts, line, "\n"))
            parts, length = [], 0
        if rest:
            parts.append(rest)
            length += len(rest)
        if longest is not None and length > longest:
            yield "".join(parts)
            parts, length = [], 0
    if parts:
        yield "".join(parts)


def _chunks(selector: selectors.BaseSelector, pipe: int, exited: int) -> Iterator[bytes]:
    os.set_blocking(pipe, False)
    selector.register(pipe, selectors.EVENT_READ)
    selector.register(exited, selectors.EVENT_READ)
    while not any(key.fd == exited for key, _ in selector.select()):
        chunk = _read(pipe)
        if chunk == b"":
            return
        yield chunk or b""
    left = MAX_LEFT
    while left > 0 and (chunk := _read(pipe)):
        left -= len(chunk)
        yield chunk


def _read(pipe: int) -> bytes | None:
    """``None`` if no data is available now, ``b""`` at end of file."""
    try:
        return os.read(pipe, CHUNK)
    except BlockingIOError:
        return None


def _watch(pid: int, exits: int) -> None:
    await_exit(pid)
    os.close(exits)


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
