"""A driver without Spark: ``python -m tests.chaos.light_driver`` is ``retrofill.driver`` with sessions of nothing.

Its lease, its kernel timer, its reports, its talk with the host and its import of the users' code are the real ones.
"""

from __future__ import annotations

import os
from typing import Any

from retrofill.bus.crash import arm
from retrofill.driver.__main__ import take_pipes
from retrofill.driver.conversation import Conversation
from retrofill.driver.process import Ending, end_with_host
from retrofill.driver.report import Wire
from retrofill.driver.serve import Server
from retrofill.logs import configure_logging
from retrofill.settings import Settings


class NoSessions:
    """Implements ``Sessions`` around nothing."""

    def open(self) -> None:
        """There is nothing to open."""

    def use(self) -> Any:
        """No work of these tests uses Spark."""
        raise AssertionError("there is no Spark here")

    def lost(self, error: BaseException) -> bool:
        """What was never there is not lost."""
        return False

    def interrupt(self) -> None:
        """All work is in this process, which ends."""

    def release(self) -> None:
        """There is nothing to free."""


def main() -> None:
    """Serve until the host ends it."""
    heard, said = take_pipes()
    if (address := os.environ.get("CHAOS_DRIVERS_KAFKA")) is not None:
        # A line to Kafka that is the drivers' alone.
        os.environ["RETROFILL_KAFKA_BOOTSTRAP_SERVERS"] = address
    settings = Settings()
    configure_logging(settings.log_level)
    arm(settings.crash_point)
    ending = Ending()
    end_with_host(ending)
    host = Conversation(heard, said, ending)
    wire = Wire(settings, on_loss=ending.end)
    wire.connect()
    server = Server(settings, ending, host, wire, lambda launch: NoSessions())
    host.say("ready", True)
    while True:
        server.serve_one()


if __name__ == "__main__":
    main()
