"""First steps of every driver process."""

from __future__ import annotations

import json
import os
import sys

from retrofill import log
from retrofill.driver.config import Config
from retrofill.masking import configure_masking
from retrofill.sdk import checking
from retrofill.system.crash import arm
from retrofill.tracing import configure_tracing

SOURCE = "spark-driver"


def settings(incoming: int) -> Config:
    """The host's first message. Exits if the host hangs up before."""
    line = b""
    # Byte by byte: what follows is not read yet.
    while not line.endswith(b"\n"):
        line += os.read(incoming, 1) or sys.exit(0)
    return Config.of(json.loads(line)["settings"])


def set_up(config: Config) -> None:
    """Mask secrets, log and trace as the settings say. Pipelines were checked when they were applied."""
    checking.skip()
    configure_masking(config.redact)
    log.configure(config.log_level)
    configure_tracing(SOURCE)
    arm(config.crash_point)
