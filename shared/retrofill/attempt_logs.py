"""The channel by which a driver's output reaches its attempt's log, and the marks that divide it."""

from __future__ import annotations

import os
import re
import select
import socket
import struct
import threading
from array import array
from contextlib import suppress
from datetime import datetime
from typing import Collection, Sequence

from retrofill.wording import span, times

# Precedes a mark on its way to the log, where it begins a line even if the one before is open.
SIGN = "\x1eretrofill\x1e"
_OF_RUN = re.compile(r"=== run (\d+) of ")


def of_runs(ids: Sequence[int], start: datetime, end: datetime, number: int) -> str:
    """The mark of a run that begins, or of a range of them. ``number``: how often it has begun."""
    what = f"run {ids[0]}" if len(ids) == 1 else f"{len(ids)} runs, from {ids[0]},"
    again = "" if number == 1 else f", begun {times(number)}"
    return f"=== {what} of {span(start, end)}{again} ==="


def note(text: str) -> str:
    """A line of Retrofill's own in a log."""
    return f"=== {text} ==="


def signed(mark: str) -> bytes:
    """The bytes to write for a mark."""
    return f"{SIGN}{mark}\n".encode()


class Part:
    """Chooses the lines of one run from the log of its attempt; all lines if ``run_id`` is ``None``."""

    def __init__(self, run_id: int | None) -> None:
        self._run_id = run_id
        self._inside = run_id is None

    def has(self, line: str) -> bool:
        """Whether the next line belongs to the run."""
        if self._run_id is not None and (found := _OF_RUN.match(line)):
            self._inside = int(found[1]) == self._run_id
        return self._inside


# The attempt whose output comes out of the pipe.
HEADER = struct.Struct("!Q")
# The variable with the number of a driver's socket.
VARIABLE = "RETROFILL_ATTEMPT_LOGS"


def open_log(channel: socket.socket, attempt_id: int) -> int:
    """Returns the end of a new pipe whose content goes to the attempt's log.

    This process keeps the other end too, so that nobody's print fails if the writer ends, and hands
    it to the next writer. Raises ``OSError`` if there will be none.
    """
    reading, writing = os.pipe()
    try:
        alive = _hand_over(channel, attempt_id, reading)
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    threading.Thread(target=_keep, args=(channel, attempt_id, reading, alive), name="attempt-log", daemon=True).start()
    return writing


def _hand_over(channel: socket.socket, attempt_id: int, pipe: int) -> int:
    """Send a pipe to the writer. Returns a file that reports an error once the writer has ended."""
    writers, ours = os.pipe()
    try:
        # As socket.send_fds, which Python has from 3.9 on.
        files = array("i", [pipe, writers])
        channel.sendmsg([HEADER.pack(attempt_id)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(writers)
    return ours


def _keep(channel: socket.socket, attempt_id: int, pipe: int, alive: int) -> None:
    """Hand the pipe to one writer after another, until nobody can print to it any more."""
    open_files, over = {pipe, alive}, False
    # If the channel is closed, there is no next writer.
    with suppress(OSError):
        while alive in (ended := _ended(open_files)) and not over:
            over = pipe in ended
            open_files.remove(alive)
            os.close(alive)
            alive = _hand_over(channel, attempt_id, pipe)
            open_files.add(alive)
    for each in open_files:
        os.close(each)


def _ended(files: Collection[int]) -> set[int]:
    """Wait until the other ends of some of these pipes are closed."""
    poll = select.poll()
    for each in files:
        # Ends are always reported.
        poll.register(each, 0)
    return {file for file, _ in poll.poll()}


def next_log(channel: socket.socket) -> tuple[int, tuple[int, ...]] | None:
    """The next attempt, the pipe with its output, and what to close with it.

    ``None`` if nobody can open logs any more. Raises ``OSError`` if there was no room for the files.
    """
    message, files, _, _ = socket.recv_fds(channel, HEADER.size, 2)
    if len(message) < HEADER.size:
        return None
    if len(files) < 2:
        for each in files:
            os.close(each)
        raise OSError("a pipe was lost: too many open files")
    return HEADER.unpack(message)[0], tuple(files)
