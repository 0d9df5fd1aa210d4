"""The real run-starter with drivers that need no Spark: ``python -m tests.chaos.light_starter``."""

from __future__ import annotations

import sys
from functools import partial

from retrofill.bus.service import run_service
from retrofill.contract.topics import RUN_STARTER
from run_starter.executors import build
from run_starter.executors.local_pool import LocalPool
from run_starter.handler import CHANNELS, StarterHandler

DRIVER = (sys.executable, "-m", "tests.chaos.light_driver")

if __name__ == "__main__":
    build.LocalPool = partial(LocalPool, command=DRIVER)  # type: ignore[misc, assignment]
    sys.exit(run_service(RUN_STARTER, StarterHandler, CHANNELS))
