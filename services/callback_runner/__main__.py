"""Run one callback-runner: ``python -m callback_runner``."""

import sys

from retrofill_core.startup import importing

with importing():
    from callback_runner.handler import CallbackHandler
    from retrofill_core.bus.service import run_service
    from retrofill_core.contract.topics import CALLBACK_RUNNER
    from retrofill_core.store.callbacks import CHANNEL

if __name__ == "__main__":
    sys.exit(run_service(CALLBACK_RUNNER, CallbackHandler, [CHANNEL]))
