"""The ``launch`` message, with which a host starts an attempt in a driver."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field, JsonValue

from retrofill.contract.base import Moment
from retrofill.domain.attempt import AttemptMode
from retrofill.domain.data import Data
from retrofill.domain.pipeline import PipelineDefinition


class LaunchedRun(Data):
    """One run of an attempt."""

    id: int
    attempt: int = Field(ge=1, description="How often the run has begun, this time included")
    interval_start: Moment
    interval_end: Moment
    publication: int = Field(0, ge=0, description="From 1: only publish what ``accepted_attempt`` staged")
    accepted_attempt: int | None = None
    outputs: tuple[str, ...] = Field((), description="What is only to be published")
    tries: dict[str, int] = Field(
        default_factory=dict, description="Tries of its tasks that timed out and ended their drivers"
    )


@dataclass(frozen=True)
class Piece:
    """What user code processes in one go: one run, or all runs of a range."""

    runs: tuple[LaunchedRun, ...]

    @property
    def id(self) -> int:
        """That of the first run, which stands for the piece."""
        return self.runs[0].id

    @property
    def attempt(self) -> int:
        """How often the first run has begun, this time included."""
        return self.runs[0].attempt

    @property
    def interval_start(self) -> datetime:
        """The start of the first interval."""
        return min(run.interval_start for run in self.runs)

    @property
    def interval_end(self) -> datetime:
        """The end of the last interval."""
        return max(run.interval_end for run in self.runs)

    @property
    def is_range(self) -> bool:
        """Whether it is split if it fails."""
        return len(self.runs) > 1


class Launch(Data):
    """An attempt: the runs to execute, or whose output is to be published."""

    backfill_id: str
    attempt_id: int
    mode: AttemptMode
    runs: tuple[LaunchedRun, ...] = Field(min_length=1)
    pipeline: PipelineDefinition
    conf: dict[str, JsonValue] = Field(default_factory=dict)
    trace: str | None = Field(None, description="Trace context of the backfill's plan")
    lease_seconds: float = Field(gt=0, description="Length of the attempt's lease")
    last: bool = Field(False, description="Whether the process is replaced after it")
    earlier: tuple[int, ...] = Field((), description="Attempts whose Spark sessions must be closed first")
    installation: str = Field("", description="Id of the installation, of which several may share a Spark server")

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The runs as user code processes them."""
        return (Piece(self.runs),) if self.mode == AttemptMode.RANGE else tuple(Piece((run,)) for run in self.runs)

    @property
    def tag(self) -> str:
        """The tag of all Spark jobs of the attempt."""
        return f"retrofill-attempt-{self.attempt_id}"

    def tag_of(self, piece: Piece, task: str) -> str:
        """The tag of all Spark jobs of a task."""
        return f"{self.tag}-run-{piece.id}-{task}"

    @property
    def about(self) -> dict[str, Any]:
        """The fields that all reports on the attempt share."""
        return {"backfill_id": self.backfill_id, "attempt_id": self.attempt_id}

    def about_run(self, run: LaunchedRun) -> dict[str, Any]:
        """The fields that all reports on one of its runs share."""
        return {**self.about, "run_id": run.id, "attempt": run.attempt, "publication": run.publication}
