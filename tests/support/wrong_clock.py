"""A service on a machine whose clock is wrong: ``python -m tests.support.wrong_clock SECONDS MODULE``.

Everything in the process that asks Python for the time of day is told a time that is off by so many seconds.
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
