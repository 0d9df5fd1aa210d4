"""A test process that is killed leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.installation import until
from tests.support.reaper import ROOT

SESSION = """
import signal, subprocess, sys
from tests.support import reaper
watcher = reaper.watch()
# As a supervisor's children: the marked process is the parent of one that is no child of this process.
child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
print(reaper.make_folder(None), watcher.pid, child.pid, child.stdout.readline().decode(), flush=True)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_what_it_started_ends_and_its_files_are_deleted(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SESSION], stdout=subprocess.PIPE, cwd=ROOT) as session:
        assert session.stdout is not None
        folder, *pids = session.stdout.readline().decode().split()
        (Path(folder) / "file").touch()
        session.send_signal(number)
    until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids), "all have ended", lambda: "")
    assert not Path(folder).exists()


def test_an_outer_session_does_not_end_the_watcher_of_an_inner_one() -> None:
    code = SESSION.replace("reaper.watch()", "(reaper.watch(), reaper.watch())[1]")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) as session:
        assert session.stdout is not None
        _, *pids = session.stdout.readline().decode().split()
        assert b"TESTS_OF_SESSION" not in Path(f"/proc/{pids[0]}/environ").read_bytes()
        os.kill(session.pid, signal.SIGKILL)
    until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids), "all have ended", lambda: "")
