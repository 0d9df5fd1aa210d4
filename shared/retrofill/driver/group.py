"""``python group.py COMMAND…``: runs a command while its parent lives and holds its lease.

This process leads a process group and kills it when the parent closes standard input (also by kill
-9), or at the last time that the parent wrote there (``time.monotonic``, which all processes of a
machine share), in case it was stopped. Then it starts another command outside of the group, if the
parent's first line was one: a JSON list of the command and its input. Imports only the standard
library, to start quickly.
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


def main(*command: str) -> int:
    """Run the command. Returns its exit status, or 128 plus the signal's number."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_kill_after_lease, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _kill_after_lease() -> None:
    lease_end: float | None = None
    afterwards: bytes | None = None
    rest = b""
    while lease_end is None or lease_end > time.monotonic():
        readable, _, _ = select.select([0], [], [], None if lease_end is None else lease_end - time.monotonic())
        if not readable:
            break
        if not (read := os.read(0, 65536)):
            break
        *lines, rest = (rest + read).split(b"\n")
        if lines and afterwards is None:
            afterwards = lines.pop(0)
        lease_end = float(lines[-1]) if lines else lease_end
    if afterwards and (then := json.loads(afterwards)):
        _start(*then)
    os.killpg(0, signal.SIGKILL)


def _start(command: list[str], given: str) -> None:
    # Nobody may read standard error any more.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(given.encode())
    process.stdin.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
