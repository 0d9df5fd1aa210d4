"""A driver without Spark: ``retrofill.driver`` with sessions that do nothing.

Its lease, kernel timer, reports, host protocol and import of user code are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from retrofill.driver.__main__ import take_pipes
from retrofill.driver.application import versions
from retrofill.driver.config import Config
from retrofill.driver.conversation import Conversation
from retrofill.driver.output import Output
from retrofill.driver.process import Ending, end_with_host
from retrofill.driver.report import Wire
from retrofill.driver.serve import Server
from retrofill.driver.setup import set_up
from retrofill.protocol.facts import SparkApplication


class NoSessions:
    """An implementation of ``Sessions`` without Spark."""

    publishes_apart = True

    def open(self) -> None:
        """No-op: there is no Spark session."""

    def use(self, tag: str) -> Any:
        """The workload does not use Spark."""
        raise AssertionError("there is no Spark here")

    def publisher(self) -> Any:
        """The workload stages folders only."""
        raise AssertionError("there is no Spark here")

    def lost(self, error: BaseException) -> None:
        """No-op: there is no session to lose."""

    def application(self) -> SparkApplication:
        """What a Spark server would have told."""
        return SparkApplication(id="local-1", ui="http://127.0.0.1:4040")

    def clear(self) -> None:
        """No-op: a run leaves nothing behind."""

    def cost(self) -> None:
        """No Spark tells."""

    def interrupt(self) -> None:
        """No-op: all work is in this process, which exits."""

    def interrupt_tag(self, tag: str) -> None:
        """No-op: there are no jobs."""

    def release(self) -> None:
        """No-op: there is no session to release."""

    def end_publications(self, attempts: Iterable[int]) -> None:
        """No-op: no session publishes."""

    def release_publisher(self) -> None:
        """No-op: there is none either."""


def main() -> None:
    """Serve until the host ends the process."""
    heard, said = take_pipes()
    output = Output.of_pool()
    ending = Ending()
    end_with_host(ending)
    host = Conversation(heard, said, ending)
    config = Config.of(host.hear("settings"))
    set_up(config)
    wire = Wire(host, on_loss=ending.end)
    server = Server(config, ending, host, wire, lambda launch: NoSessions(), output=output)
    host.say("ready", versions(None))
    while True:
        server.serve_one()


if __name__ == "__main__":
    main()
