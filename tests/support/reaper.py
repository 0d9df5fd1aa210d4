"""Ends what a test process leaves when it dies: servers, services, drivers, and their files in memory.

Fixtures do it at the end of a session, but not when the test process is killed, by a time limit of CI for example.
``watch`` marks the environment, which children inherit, and starts ``python -m tests.support.reaper``, whose
standard input ends with the test process, however that ends. What has the mark then is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
MARK = "TESTS_OF_SESSION"


def watch() -> subprocess.Popen[bytes]:
    """Mark the children to come, and watch this process. Keep the result: its standard input is what ends."""
    mark = uuid.uuid4().hex
    # A watcher has no mark: it must outlive this session, and a session around it, xdist's for example.
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    command = [sys.executable, "-m", "tests.support.reaper", mark]
    # In a session of its own: a terminal's Ctrl-C must not end it.
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, env=unmarked, start_new_session=True)
    os.environ[MARK] = mark
    return watcher


def make_folder(parent: Path | None) -> Path:
    """A temporary folder that the watcher deletes too. ``parent``: without one, the usual one."""
    return Path(tempfile.mkdtemp(prefix=_prefix(os.environ[MARK]), dir=parent))


def _prefix(mark: str) -> str:
    return f"retrofill-tests-{mark[:12]}-"


def end(mark: str) -> None:
    """Kill until nothing is left, as a supervisor starts others meanwhile. Then delete the folders."""
    # Here: most watchers wait for minutes, and these take a second to import.
    from retrofill_tools.stack.processes import marked, wait_exited

    while left := marked(MARK, mark):
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        wait_exited(left, 5)
    for parent in {Path("/dev/shm"), Path(tempfile.gettempdir())}:
        for folder in parent.glob(f"{_prefix(mark)}*"):
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.stdin.read()
    end(sys.argv[1])
