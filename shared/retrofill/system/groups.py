"""Reads the output of a child that leads a process group, and kills the group when it exits.

End of file on a pipe is not enough: a background process of the child may keep the other end open
forever.
"""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import threading
from contextlib import suppress
from typing import IO, Iterator

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
