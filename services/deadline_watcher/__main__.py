"""Run one deadline-watcher: ``python -m deadline_watcher``."""

import sys

from retrofill_core.startup import importing

with importing():
    from deadline_watcher.handler import WatcherHandler
    from retrofill_core.bus.service import run_service
    from retrofill_core.contract.topics import WATCHER

if __name__ == "__main__":
    sys.exit(run_service(WATCHER, WatcherHandler))
