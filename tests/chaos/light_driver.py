"""A driver without Spark: ``retrofill.driver`` with sessions that do nothing.

Its lease, kernel timer, reports, host protocol and import of user code are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import IO, Any

from retrofill.driver.__main__ import attempt, take_pipes, warm_up
from retrofill.driver.application import versions
from retrofill.driver.config import settings
from retrofill.driver.forking import Notes, Parent
from retrofill.driver.process import Output
from retrofill.protocol.facts import SparkApplication


class NoSessions:
    """An implementation of ``Sessions`` without Spark."""

    publishes_apart = True
    shares_server = True

    def open(self) -> None:
        """No-op: there is no Spark session."""

    def use(self, tag: str) -> None:
        """No-op: the workload does not use Spark."""

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
    config = settings(heard)
    # As a driver with Spark does before its first attempt.
    warm_up()

    def ready(incoming: IO[str], outgoing: IO[str], notes: Notes, _: None) -> None:
        notes.ready(versions(None), None)

    Parent(heard, said, ready, partial(attempt, config, output, lambda known, launch: NoSessions())).serve()


if __name__ == "__main__":
    main()
