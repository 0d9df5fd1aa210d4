"""Sends a driver's output to the log of the attempt that it executes.

The file descriptors are redirected, so this includes what child processes and libraries print.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

from retrofill import attempt_logs
from retrofill.attempt_logs import VARIABLE, open_log
from retrofill.log import get_log
from retrofill.protocol.launch import Launch, Piece, interval_of

log = get_log(__name__)
STDOUT, STDERR = 1, 2


class Output:
    """The standard output and error of this process."""

    def __init__(self, channel: socket.socket | None = None) -> None:
        """Without ``channel``, they stay what they are: the host redirected them at the start."""
        self._channel = channel

    @classmethod
    def of_pool(cls) -> Output:
        """Of a driver that serves attempts one after another."""
        number = os.environ.pop(VARIABLE, None)
        if number is None:
            return cls()
        channel = socket.socket(fileno=int(number))
        # Child processes of user code do not get it.
        channel.set_inheritable(False)
        return cls(channel)

    def begin(self, attempt_id: int) -> None:
        """From now on to the log of this attempt."""
        if self._channel is None:
            return
        try:
            pipe = open_log(self._channel, attempt_id)
        except OSError as e:
            # What is printed is then among the lines of all drivers.
            log.warning("attempt_log_not_opened", error=str(e))
            return
        _redirect(pipe)
        os.close(pipe)

    def mark(self, launch: Launch, piece: Piece) -> None:
        """Say that what follows belongs to these runs."""
        ids, interval = [run.id for run in piece.runs], interval_of(launch, piece)
        _flush()
        with suppress(OSError):  # nobody reads it
            os.write(
                STDERR, attempt_logs.signed(attempt_logs.of_runs(ids, interval.start, interval.end, piece.attempt))
            )


def _redirect(to: int) -> None:
    _flush()
    for number in (STDOUT, STDERR):
        os.dup2(to, number)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # user code closed it, or put something else there
            stream.flush()
