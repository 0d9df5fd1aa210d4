"""Executors run the drivers of claimed runs and report when one ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pydantic import JsonValue

from retrofill.domain.pipeline import PipelineDefinition

# Identifies a driver: run id, attempt and publication.
Key = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchRequest:
    """A request to execute one attempt, or to publish its output: all that a driver needs."""

    backfill_id: str
    run_id: int
    attempt: int
    pipeline: PipelineDefinition
    interval_start: datetime
    interval_end: datetime
    conf: dict[str, JsonValue]
    trace: str | None = None
    # From 1: only publish the attempt's output, because its own driver was lost meanwhile.
    publication: int = 0
    outputs: tuple[str, ...] = ()
    # The attempt's own lease, which settings changed later do not affect.
    lease_seconds: float | None = None

    @property
    def key(self) -> Key:
        return self.run_id, self.attempt, self.publication

    def as_json(self) -> dict[str, Any]:
        """The ``launch`` message to a driver process (``retrofill.driver.launch``)."""
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
    """What an executor needs of its run-starter. Every method may be called from any thread."""

    def may_begin(self, launch: LaunchRequest) -> float | None:
        """Seconds left of the attempt's lease, read from Postgres now; ``None`` if it is over."""

    def may_publish(self, launch: LaunchRequest) -> bool:
        """Whether this driver publishes what the attempt staged. Waits until that is decided."""

    def driver_ended(self, launch: LaunchRequest, *, reported: bool, reason: str, exited: bool = True) -> None:
        """A driver exited or is free again. ``reported``: it sent a RunReported, else it was lost.

        ``exited``: false if it may still run out of reach; then only its lease ends the attempt.
        """

    def refused(self, launch: LaunchRequest, reason: str) -> None:
        """The attempt may not be executed: its run fails with ``reason``."""


class Executor(Protocol):
    """Hosts drivers. No method blocks for longer than a few milliseconds."""

    def free(self) -> int:
        """Number of runs that may be launched now."""

    def ending(self, keys: Collection[Key]) -> None:
        """These drivers have reported their end: those here may count as free from now on."""

    def launch(self, launch: LaunchRequest) -> None:
        """Hand an attempt to a driver; its end arrives at ``Host.driver_ended``."""

    def hosted(self) -> set[Key]:
        """The keys of all drivers here, including launches that still wait for one."""

    def end(self, key: Key) -> None:
        """End a driver's Spark work (by tag) and its process; unknown keys are ignored."""

    def close(self) -> None:
        """End all drivers and release the executor's resources."""
