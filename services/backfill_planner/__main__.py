"""Run one backfill-planner: ``python -m backfill_planner``."""

import sys

from retrofill_core.startup import importing

with importing():
    from backfill_planner.handler import PlannerHandler
    from retrofill_core.bus.service import run_service
    from retrofill_core.contract.topics import PLANNER

if __name__ == "__main__":
    sys.exit(run_service(PLANNER, PlannerHandler))
