"""Run one console: ``python -m retrofill_console [--port N]``."""

import sys

from retrofill_core.startup import importing

with importing():
    from retrofill_console.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
