"""A child that leads a process group: what it says until it exits, and the end of what it leaves behind.

The end of a pipe says nothing of the child: a process that it started in the background may hold the other side for ever.
"""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

CHUNK = 65_536
# Of what is still in the pipe when the child has exited; somebody who escaped its group may go on writing.
MAX_LEFT = 1_048_576


def await_exit(pid: int) -> None:
    """Wait until the child exits, and kill what is left of its group. It is still to be reaped."""
    # As long as it is not reaped, its number, which is its group's, is nobody else's.
    with suppress(ChildProcessError, ProcessLookupError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)


def lines_until_exit(process: subprocess.Popen[str], pipe: IO[str]) -> Iterator[str]:
    """The lines of the child's pipe until it exits, with their ends; nobody else may read there. Ends its group."""
    exited, exits = os.pipe()
    watcher = threading.Thread(target=_watch, args=(process.pid, exits), daemon=True)
    watcher.start()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    try:
        for chunk in _chunks(pipe.fileno(), exited):
            *lines, rest = (rest + decoder.decode(chunk)).split("\n")
            yield from (line + "\n" for line in lines)
        if rest := rest + decoder.decode(b"", final=True):
            yield rest
    finally:
        watcher.join()
        os.close(exited)
        pipe.close()


def _chunks(pipe: int, exited: int) -> Iterator[bytes]:
    os.set_blocking(pipe, False)
    with selectors.DefaultSelector() as selector:
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
    """``None`` where nothing is there now, nothing at the end."""
    try:
        return os.read(pipe, CHUNK)
    except BlockingIOError:
        return None


def _watch(pid: int, exits: int) -> None:
    await_exit(pid)
    os.close(exits)
