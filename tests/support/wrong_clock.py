"""Runs a service with a wrong clock: ``python -m tests.support.wrong_clock SECONDS MODULE``.

Python's time of day is off by SECONDS in the whole process.
"""

from __future__ import annotations

import datetime
import runpy
import sys

import time_machine

if __name__ == "__main__":
    seconds, module = float(sys.argv[1]), sys.argv[2]
    sys.argv = [module]
    wrong = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    with time_machine.travel(wrong, tick=True):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
