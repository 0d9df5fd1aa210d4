"""Crash points: a process exits or stops when it reaches the armed point, and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PASSES = """
import sys
from retrofill.system.crash import arm, crash_point
arm(sys.argv[1] or None)
for n in range(1, 4):
    crash_point("other")
    crash_point("here")
    print(n, flush=True)
"""


@pytest.mark.parametrize(("armed", "said"), [("here", ""), ("here@1", ""), ("here@3", "1\n2\n")])
def test_it_dies_at_its_pass(armed: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", PASSES, armed], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, said)


@pytest.mark.parametrize("armed", ["", "elsewhere", "here@4"])
def test_it_goes_on_elsewhere(armed: str) -> None:
    done = subprocess.run([sys.executable, "-c", PASSES, armed], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n2\n3\n")


def test_it_stops_and_goes_on_when_woken() -> None:
    with subprocess.Popen([sys.executable, "-c", PASSES, "here@2:stop"], stdout=subprocess.PIPE, text=True) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=20)
        assert (process.returncode, said) == (0, "1\n2\n3\n")
