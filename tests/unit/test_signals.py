"""Signals that come faster than they are handled."""

from __future__ import annotations

import signal
import subprocess
import sys

WAITS = """
import signal, threading
from retrofill.system.signals import on_signals
stopping, seen = threading.Event(), set()
on_signals((signal.SIGTERM, signal.SIGINT), lambda number: (seen.add(number), stopping.set()))
print("waits", flush=True)
while len(seen) < 2:
    stopping.wait()
    stopping.clear()
print(sorted(seen), flush=True)
"""


def test_signals_inside_of_the_handlers_of_others_stop_nothing() -> None:
    for _ in range(20):
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
