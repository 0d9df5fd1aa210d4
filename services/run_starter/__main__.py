"""Run one run-starter: ``python -m run_starter``."""

import sys

from retrofill_core.startup import importing

with importing():
    from retrofill_core.bus.service import run_service
    from retrofill_core.contract.topics import RUN_STARTER
    from run_starter.handler import CHANNELS, StarterHandler

if __name__ == "__main__":
    sys.exit(run_service(RUN_STARTER, StarterHandler, CHANNELS))
