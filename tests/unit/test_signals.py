"""Signals that come faster than they are handled."""

from __future__ import annotations

import signal
import subprocess
import sys

WAITS = """
import signal, threading
from retrofill.system.processes import on_signals
stopping, seen = threading.Event(), set()
on_signals((signal.SIGTERM, signal.SIGINT), lambda number: (seen.add(number), stopping.set()))
print("waits", flush=True)
while len(seen) < 2:
    stopping.wait()
    stopping.clear()
print(sorted(seen), flush=True)
"""


def test_signals_inside_of_the_handlers_of_others_stop_nothing() -> None:
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        for number in (signal.SIGTERM, signal.SIGINT) * 500:
            process.send_signal(number)
        try:
            said, _ = process.communicate(timeout=30)
        finally:
            process.kill()
        assert said == "[2, 15]\n"


FORKS = """
import os, signal, threading
from retrofill.system.processes import on_signals
seen = []
on_signals((signal.SIGTERM,), seen.append)
others = [threading.Thread(target=lambda: [None for _ in range(10 ** 6)]) for _ in range(2)]
for each in others:
    each.start()
for _ in range(300):
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(7)
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
print(seen, flush=True)
"""


def test_a_signal_to_a_child_that_has_done_nothing_yet_is_none_of_its_parents() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
