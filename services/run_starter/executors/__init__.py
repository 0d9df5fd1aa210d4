"""Executors: what a claimed run is handed to. Each hosts its drivers and says when one was lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pydantic import JsonValue

from retrofill.domain.pipeline import PipelineDefinition

# Run id, attempt and publication: whose driver it is.
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One attempt to be executed, or to be published: all that a driver needs to know."""

    backfill_id: str
    run_id: int
    attempt: int
    pipeline: PipelineDefinition
    interval_start: datetime
    interval_end: datetime
    conf: dict[str, JsonValue]
    trace: str | None = None
    # From 1: the attempt's output is only to be published, because its own driver was lost over it.
    publication: int = 0
    outputs: tuple[str, ...] = ()
    # Of the attempt: its driver ends itself by it, whatever the settings say by then.
    lease_seconds: float | None = None

    @property
    def key(self) -> Key:
        """Whose driver it is."""
        return self.run_id, self.attempt, self.publication

    def as_json(self) -> dict[str, Any]:
        """As sent to a driver process."""
        return {
            "backfill_id": self.backfill_id,
            "run_id": self.run_id,
            "attempt": self.attempt,
            "pipeline": self.pipeline.as_json(),
            "interval_start": self.interval_start.isoformat(),
            "interval_end": self.interval_end.isoformat(),
            "conf": self.conf,
            "trace": self.trace,
            "publication": self.publication,
            "outputs": list(self.outputs),
            "lease_seconds": self.lease_seconds,
        }


class Host(Protocol):
    """What an executor needs of the run-starter that it lives in. Every method may be called from any thread."""

    def may_begin(self, launch: Launch) -> bool:
        """Whether the attempt is still the live one and its lease has not ended, read from Postgres now."""

    def may_publish(self, launch: Launch) -> bool:
        """Whether what the attempt staged was accepted and is its own to publish. Waits until that is decided."""

    def driver_ended(self, launch: Launch, *, reported: bool, reason: str, gone: bool = True) -> None:
        """A driver is gone or free again. ``reported``: it had delivered its own RunReported; otherwise it was lost.

        ``gone`` is false where nobody here can tell whether it still runs: then only its lease ends the attempt.
        """

    def refused(self, launch: Launch, reason: str) -> None:
        """The attempt is not to be executed at all: its run fails, for that ``reason``."""


class Executor(Protocol):
    """Hosts drivers. No method blocks for longer than a few milliseconds."""

    def free(self) -> int:
        """How many more runs may be launched now."""

    def launch(self, launch: Launch) -> None:
        """Hand an attempt to a driver; its end arrives at ``Host.driver_ended``."""

    def hosted(self) -> set[Key]:
        """Whose drivers are here."""

    def end(self, key: Key) -> None:
        """End a driver, Spark work by tag and process alike; unknown keys are ignored."""

    def close(self) -> None:
        """End all drivers and free what the executor holds."""
