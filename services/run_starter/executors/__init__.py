"""Executors run the drivers of claimed runs and report when one ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from pydantic import JsonValue

from retrofill.protocol.launch import LaunchedRun
from retrofill.protocol.table_output import TableOutput
from retrofill.states import AttemptMode
from retrofill_core.contract.runs import ErrorInfo, Report
from retrofill_core.domain.pipeline import PipelineDefinition

# Called with ``None`` once a report is durable, else with why it never will be.
OnDelivery = Callable[[str | None], object]
# Identifies a driver: the id of its attempt.
Key = int
# The settings do not permit it.
NOT_ALLOWED = "NotAllowed"


@dataclass(frozen=True)
class LaunchRequest:
    """A request to execute one attempt: all that a driver needs."""

    backfill_id: str
    attempt_id: int
    mode: AttemptMode
    runs: tuple[LaunchedRun, ...]
    pipeline: PipelineDefinition
    conf: dict[str, JsonValue]
    # The attempt's own, which settings changed later do not affect.
    lease_seconds: float
    trace: str | None = None
    # Attempts of these runs that did not end by themselves: their sessions are closed first.
    earlier: tuple[int, ...] = ()
    # Attempts of two installations may have the same ids.
    installation: str = ""
    # How long what a publication replaces is kept; 0: not at all.
    keep_replaced_days: int = 0
    staged_tables: str | None = None
    # Ranges that had some of these runs, and of which others may still publish what they staged.
    unpublished: tuple[int, ...] = ()
    # What it stages waits for a review.
    review: bool = False
    # Of a publication: the other runs whose output the same attempts staged.
    siblings: tuple[LaunchedRun, ...] = ()
    # Of one that only publishes: attempts that may have tried to publish the same before. Their operations must have
    # ended before a failure is reported.
    publishers: tuple[int, ...] = ()
    # Whether this machine sees the directories that it publishes.
    sees_files: bool = True

    @property
    def only_files(self) -> bool:
        """Whether it publishes or restores nothing but directories: without Spark, and without the user's code."""
        moves = self.mode == AttemptMode.PUBLISH or self.runs[0].restores is not None
        return moves and not has_tables(output for run in self.runs for output in run.outputs)

    @property
    def needs_no_spark(self) -> bool:
        """Whether its driver does without a session of its own."""
        if self.mode == AttemptMode.PUBLISH or self.runs[0].restores is not None:
            return self.only_files and self.sees_files
        return not self.pipeline.needs_session

    @property
    def key(self) -> Key:
        return self.attempt_id

    @property
    def about(self) -> dict[str, Any]:
        """The fields that all reports on the attempt share."""
        return {"backfill_id": self.backfill_id, "attempt_id": self.attempt_id}

    def as_json(self) -> dict[str, Any]:
        """The ``launch`` message to a driver process (``retrofill.protocol.launch``)."""
        zone = ZoneInfo(self.pipeline.timezone)
        of_runs = {name: [run.as_json(zone) for run in getattr(self, name)] for name in ("runs", "siblings")}
        return {**vars(self), **of_runs, "mode": str(self.mode), "pipeline": self.pipeline.as_json()}


def has_tables(outputs: Iterable[str]) -> bool:
    """Whether one of a run's outputs is a table, which only Spark can publish."""
    return any(TableOutput.of(output) is not None for output in outputs)


@dataclass(frozen=True)
class TimedOut:
    """A try of a task that ended its driver: it timed out and did not end, or it exited.

    ``everywhere``: it would do so in every run.
    """

    task: str
    try_number: int
    error: ErrorInfo
    everywhere: bool = False


@dataclass(frozen=True)
class Condition:
    """``room``: how many attempts have a warm process, those that it executes now included.

    ``submits``: whether spark-submit may be started. ``note``: why drivers do not start. ``python``
    and ``spark``: the versions of the last driver that was ready.
    """

    room: int
    submits: bool = True
    note: str | None = None
    python: str | None = None
    spark: str | None = None


class Host(Protocol):
    """What an executor needs of its run-starter. Every method may be called from any thread."""

    def may_begin(self, launch: LaunchRequest, run_id: int) -> float | None:
        """Seconds left of the attempt's lease, read from Postgres now, if it may begin this run.

        Waits while Postgres is away. ``None``: it must not begin any more.
        """

    def may_publish(self, launch: LaunchRequest, run_ids: Sequence[int]) -> bool:
        """Whether this driver publishes what all these runs staged. Waits until that is decided."""

    def publish(
        self,
        launch: LaunchRequest,
        report: Report,
        on_delivery: OnDelivery,
        trace: str | None,
        renewed: Callable[[], object],
    ) -> None:
        """Publish a report of the driver, with this trace context. In order.

        ``renewed`` is called if it is a heartbeat that renewed the lease in Postgres, because Kafka is late.
        """

    def code(self, sha256: str, *, whole: bool) -> dict[str, str]:
        """The user's code with this hash: its ``folder`` on this machine or, if ``whole``, the ``archive`` in base64.

        Or the ``error``: why it cannot be had. May take a minute.
        """

    def driver_ended(
        self,
        launch: LaunchRequest,
        *,
        reported: bool,
        reason: str,
        exited: bool = True,
        begun: int | None = None,
        unheard: bool = False,
        shared: bool = False,
    ) -> None:
        """A driver exited or is free again. ``reported``: it reported the end, else it was lost.

        ``exited``: false if it may still run out of reach; then only its lease ends the attempt.
        ``begun``: the last run that it was allowed to begin. ``unheard``: it worked until its lease ended.
        ``shared``: it was lost with its whole Spark server.
        """

    def timed_out(self, launch: LaunchRequest, begun: int, over: TimedOut) -> None:
        """A driver exited because of a task of the run or range ``begun``."""

    def refused(self, launch: LaunchRequest, reason: str, *, kind: str = NOT_ALLOWED) -> None:
        """The attempt may not or cannot be executed: its runs fail with ``reason``, an error of that kind."""

    def changed(self) -> None:
        """Another number of attempts has room, or starts fail for another reason."""


class Launcher(Protocol):
    """Hosts drivers. No method blocks for longer than a few milliseconds."""

    def launch(self, launch: LaunchRequest) -> None:
        """Hand an attempt to a driver; its end arrives at ``Host.driver_ended``.

        It waits if no driver is ready yet.
        """

    def hosted(self) -> set[Key]:
        """The keys of all drivers here, including launches that still wait for one."""

    def end(self, key: Key) -> None:
        """End a driver's Spark work (by tag) and its process; unknown keys are ignored."""

    def close(self) -> None:
        """End all drivers and release the executor's resources."""


class Executor(Launcher, Protocol):
    """Hosts the drivers of one pool."""

    def condition(self) -> Condition:
        """For how many attempts there are drivers."""

    def waiting(self) -> Collection[LaunchRequest]:
        """Launches whose driver sends no heartbeats: none has received them yet, or it is gone and being cleared away."""
