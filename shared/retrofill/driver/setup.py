"""First steps of every driver process."""

from __future__ import annotations

from retrofill import log
from retrofill.driver.config import Config
from retrofill.masking import configure_masking
from retrofill.system.crash import arm
from retrofill.tracing import configure_tracing

SOURCE = "spark-driver"


def set_up(config: Config) -> None:
    """Mask secrets, log and trace as the settings say."""
    configure_masking(config.redact)
    log.configure(config.log_level)
    configure_tracing(SOURCE)
    arm(config.crash_point)
