"""``python group.py AFTERWARDS COMMAND…``: runs a command while its parent lives and holds its lease.

This process leads a process group and kills it when the parent closes standard input (also by kill
-9), or at the last time that the parent wrote there (``time.monotonic``, which all processes of a
machine share), in case it was stopped. Then it starts the command ``AFTERWARDS``, a JSON list that
may be empty, outside of the group. Imports only the standard library, to start quickly.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time


def main(afterwards: str, *command: str) -> int:
    """Run the command. Returns its exit status, or 128 plus the signal's number."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_kill_after_lease, args=(json.loads(afterwards),), daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _kill_after_lease(afterwards: list[str]) -> None:
    lease_end: float | None = None
    rest = b""
    while lease_end is None or lease_end > time.monotonic():
        readable, _, _ = select.select([0], [], [], None if lease_end is None else lease_end - time.monotonic())
        if not readable:
            break
        if not (read := os.read(0, 4096)):
            break
        *lines, rest = (rest + read).split(b"\n")
        lease_end = float(lines[-1]) if lines else lease_end
    if afterwards:
        # Nobody may read standard error any more.
        subprocess.Popen(afterwards, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
