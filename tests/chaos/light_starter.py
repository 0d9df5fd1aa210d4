"""The real run-starter with drivers that need no Spark: ``python -m tests.chaos.light_starter``."""

from __future__ import annotations

import os
import sys
from functools import partial

from retrofill.bus import service
from retrofill.contract.topics import RUN_STARTER
from run_starter.executors import build
from run_starter.executors.local_pool import LocalPool
from run_starter.handler import CHANNELS, StarterHandler

DRIVER = (sys.executable, "-m", "tests.chaos.light_driver")

if __name__ == "__main__":
    build.LocalPool = partial(LocalPool, command=DRIVER)  # type: ignore[misc, assignment]
    if (name := os.environ.get("CHAOS_HOST")) is not None:
        # As in a container, where the next process has the host name and the process id of the last one.
        service.name_of_instance = lambda _: name
    sys.exit(service.run_service(RUN_STARTER, StarterHandler, CHANNELS))
