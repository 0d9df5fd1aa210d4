"""``python group.py COMMAND…``: runs a command as long as whoever started us lives and holds its lease.

We lead a process group and kill all of it at the end of our standard input, a pipe that only the starter holds (a
kill -9 leaves the starter no moment to end anything), or at the last moment that the starter wrote there, on the clock
that all processes of a machine share (a starter that was stopped writes no later one). Imports nothing of ours, so that
it starts at once.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time


def main(command: list[str]) -> int:
    """Run the command; its exit status, or as shells tell a signal."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_kill_in_time, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _kill_in_time() -> None:
    moment: float | None = None
    rest = b""
    while moment is None or moment > time.monotonic():
        readable, _, _ = select.select([0], [], [], None if moment is None else moment - time.monotonic())
        if not readable:
            break
        if not (read := os.read(0, 4096)):
            break
        *lines, rest = (rest + read).split(b"\n")
        moment = float(lines[-1]) if lines else moment
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
