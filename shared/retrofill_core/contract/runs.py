"""Messages on ``run-reports`` (from Spark drivers, published by their host) and ``run-events`` (from the run-starter)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from retrofill.errors import head_of
from retrofill.states import TaskState
from retrofill_core.contract.base import (
    Attempt,
    BackfillId,
    Cost,
    IntervalEnd,
    IntervalStart,
    Message,
    Moment,
    PipelineName,
    RunId,
    TaskName,
    TryNumber,
    UndoneRunId,
)
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.run import RunState


class ErrorInfo(BaseModel):
    """Why a task or run failed."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    type: str = Field(max_length=200, description="Name of the exception's class")
    message: str = Field(max_length=4000, description="Its message")
    traceback: str | None = Field(None, max_length=8000, description="The last lines of the traceback")
    same_as_run: int | None = Field(
        None,
        description="A run of the same attempt with the same error, which has all of it; the message is only its first line",
    )

    def of_run(self, id: int, first: int) -> ErrorInfo:
        """As a run has it. If it is long, only the ``first`` of those that have it has all of it."""
        head = None if id == first else head_of(self.message, self.traceback)
        changed = {"message": head, "traceback": None, "same_as_run": first}
        return self if head is None else self.model_copy(update=changed)


class SparkApplication(BaseModel):
    """The Spark application that an attempt uses."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    id: str = Field(max_length=200, description="Its id, like app-20260302080011-0042 or local-1772438411000")
    ui: str | None = Field(None, max_length=1000, description="Address of its web UI, if Spark tells it")


class PublishedOutput(BaseModel):
    """A folder or table that a run has replaced."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    name: str = Field(max_length=4096, description="The folder's path, or the table's whole name")
    version: str | None = Field(
        None, max_length=100, description="The table's version since then: Iceberg's id of the snapshot, Delta's number"
    )
    replaced_change: bool = Field(
        False,
        description="Whether what it replaced was changed by somebody else in the moment of the publication, after the "
        "state that the review had approved; an undo restores that",
    )


# An attempt of several single runs is measured as a whole.
COST_OF_RUN = (
    "What Spark used for the run, an equal part of its range; absent if unknown or if others were in its attempt"
)
OutputPath = Annotated[
    str,
    Field(
        min_length=1, max_length=4096, description="An absolute path, or table:NAME?… with where its rows are staged"
    ),
]


OutputBase = Annotated[
    str,
    Field(max_length=200, description="The state that an output's place had: its version, and what tells its content"),
]


class Report(Message):
    """A report on one attempt, from its driver or from the replica that hosts it."""

    backfill_id: BackfillId
    attempt_id: int = Field(ge=1, description="Id of the attempt; reports of one that is over have no effect")
    sent_at: Moment | None = Field(None, description="When it was sent, by the sender's clock; informational")


class AttemptHeartbeat(Report):
    """The attempt is alive, which extends its lease."""

    type: Literal["AttemptHeartbeat"] = "AttemptHeartbeat"


# The type of the error of an attempt that was lost with its whole Spark server.
SPARK_LOST = "SparkLost"


class AttemptEnded(Report):
    """The driver does nothing more for the attempt.

    The driver itself reports ``done``; its runs that have not begun are queued again. If a range
    failed, it reports ``failed``; the runs are queued again, to be tried in smaller ranges. The
    replica that hosts it reports ``lost`` when the process exited, and ``released``, which does not
    count as a loss, when it shut down and stopped the process itself, or when a task that timed out
    ended it. A driver that only publishes reports ``released`` if that was not possible.
    """

    type: Literal["AttemptEnded"] = "AttemptEnded"
    state: Literal["done", "failed", "lost", "released"] = Field(description="How it ended")
    begun: RunId | None = Field(
        None, description="If lost or released: the last run, or the first of the range, that the driver could begin"
    )
    error: ErrorInfo | None = Field(None, description="Why it failed, was lost or released")
    stays: bool = Field(False, description="Whether the driver's process stays for another attempt")
    shared: bool = Field(
        False, description="If lost: whether its whole Spark server was, which other attempts use, too"
    )
    cost: Cost | None = Field(None, description="Resources that Spark used for the attempt, if it reported them")


class RunReport(Report):
    """A report on one run of the attempt. The first one makes the run ``running``."""

    run_id: RunId
    attempt: int = Field(ge=1, description="How often the run has begun, this time included")
    publication: int = Field(
        0, ge=0, description="Publication of the accepted output; 0 is by the driver that staged it"
    )


# The header that says which attempt a report is about, and which run if it is about one, however its value reads.
SUBJECT = "ce_subject"


def subject_of(report: Report) -> str:
    run = f"/runs/{report.run_id}" if isinstance(report, RunReport) else ""
    return f"attempts/{report.attempt_id}{run}"


class RunBegan(RunReport):
    """The driver begins the run."""

    type: Literal["RunBegan"] = "RunBegan"
    spark: SparkApplication | None = Field(None, description="The attempt's Spark application, if the driver knows it")


class TaskReported(RunReport):
    """A task changed state."""

    type: Literal["TaskReported"] = "TaskReported"
    task: TaskName
    state: TaskState = Field(description="Its new state")
    try_number: int = Field(1, ge=1, description="Number of the task's try within this attempt, from 1")
    error: ErrorInfo | None = Field(None, description="Why the try failed")


class RunStaged(RunReport):
    """The run's tasks succeeded and their staged output can be published, at once or after a review.

    The run is not executed again.
    """

    type: Literal["RunStaged"] = "RunStaged"
    outputs: tuple[OutputPath, ...] = Field(
        min_length=1, max_length=1000, description="The folders and tables to publish"
    )
    bases: tuple[OutputBase, ...] = Field(
        (), max_length=1000, description="For a review: the state of each of these places, which it compares with"
    )


class RunBaseChanged(RunReport):
    """Somebody has changed what approved output would replace, so it is not published: it waits for another review."""

    type: Literal["RunBaseChanged"] = "RunBaseChanged"
    changed: tuple[OutputPath, ...] = Field(
        min_length=1, max_length=1000, description="Those of the run's outputs whose places were changed"
    )
    bases: tuple[OutputBase, ...] = Field(
        max_length=1000, description="The present state of the places of all its outputs"
    )


class RunPublicationPutOff(RunReport):
    """The run's accepted output cannot be published now, for a reason that may pass. Another publisher tries later."""

    type: Literal["RunPublicationPutOff"] = "RunPublicationPutOff"
    error: ErrorInfo | None = Field(None, description="Why that is not possible")


class RunReported(RunReport):
    """The run ended, including the publication of its staged output."""

    type: Literal["RunReported"] = "RunReported"
    state: Literal["succeeded", "failed"] = Field(description="How it ended")
    error: ErrorInfo | None = Field(None, description="Why it failed")
    cost: Cost | None = Field(None, description=COST_OF_RUN)
    published: tuple[PublishedOutput, ...] = Field(
        (), max_length=1000, description="What it published, in the order in which that happened"
    )


class RunEvent(Message):
    """An event about one run."""

    backfill_id: BackfillId
    pipeline: PipelineName
    run_id: RunId
    undoes_run_id: UndoneRunId = None
    attempt: Attempt
    interval_start: IntervalStart
    interval_end: IntervalEnd
    at: Moment = Field(description="When, by the database's clock")


class RunStarted(RunEvent):
    """A driver began the run."""

    type: Literal["RunStarted"] = "RunStarted"
    attempt_id: int | None = Field(None, description="Id of the attempt, in which the driver may execute other runs")
    code_sha256: str | None = Field(
        None, description="Hash of the archive with the attempt's code; absent if the code is imported in place"
    )


class RunHeldForReview(RunEvent):
    """The attempt's output was accepted, and is published once its backfill is approved."""

    type: Literal["RunHeldForReview"] = "RunHeldForReview"
    outputs: tuple[OutputPath, ...] = Field(description="The folders and tables that would be published")
    changed: tuple[OutputPath, ...] = Field(
        (),
        description="Those whose places somebody has changed since they were approved: for these, another review is asked",
    )


class RunPublishing(RunEvent):
    """The attempt's output was accepted and is being published, by its driver or a later one."""

    type: Literal["RunPublishing"] = "RunPublishing"
    outputs: tuple[OutputPath, ...] = Field(description="The folders and tables being published")
    publication: int = Field(
        description="0 is by the attempt's own driver; rises by one for each publisher after a loss"
    )


class RunSucceeded(RunEvent):
    """The run succeeded."""

    type: Literal["RunSucceeded"] = "RunSucceeded"
    cost: Cost | None = Field(None, description=COST_OF_RUN)
    replaced_changes: tuple[str, ...] = Field(
        (),
        description="Outputs that somebody else changed in the moment of their publication, after the state that the review "
        "had approved; an undo of the backfill restores that",
    )


class RunFailed(RunEvent):
    """The run failed permanently."""

    type: Literal["RunFailed"] = "RunFailed"
    error: ErrorInfo | None = Field(None, description="Why, if known")
    cost: Cost | None = Field(None, description=COST_OF_RUN)


class RunAttemptLost(RunEvent):
    """The driver was lost or released. The run is queued again or ends, as ``state`` shows."""

    type: Literal["RunAttemptLost"] = "RunAttemptLost"
    state: RunState = Field(description="New state of the run: queued, or its end state")
    error: ErrorInfo | None = Field(None, description="How the driver was lost or why it was released, if known")
    counted: bool | None = Field(
        None,
        description="Whether the loss counts towards the limit: those of a run that was retried alone do, the first "
        "one and a release do not",
    )


class RunSplit(RunEvent):
    """The range that the run was part of failed or was lost. Its runs are tried in smaller ranges."""

    type: Literal["RunSplit"] = "RunSplit"
    size: int = Field(ge=1, description="Maximum number of runs in the run's next range")
    error: ErrorInfo | None = Field(None, description="Why the range did not succeed")


class RunCancelled(RunEvent):
    """The run was cancelled."""

    type: Literal["RunCancelled"] = "RunCancelled"


class TaskStateChanged(RunEvent):
    """A task of the run changed state."""

    type: Literal["TaskStateChanged"] = "TaskStateChanged"
    task: TaskName
    state: TaskState = Field(description="Its new state")
    try_number: TryNumber
    error: ErrorInfo | None = Field(None, description="Why the try failed")


class BackfillStateChanged(Message):
    """The state of a backfill."""

    type: Literal["BackfillStateChanged"] = "BackfillStateChanged"
    backfill_id: BackfillId
    pipeline: PipelineName
    state: BackfillState = Field(description="Its new state")
    range_start: Moment = Field(description="Start of the first data interval")
    range_end: Moment = Field(description="End of the last data interval")
    runs: int = Field(description="Planned runs")
    undoes: str | None = Field(None, description="Id of the backfill whose output its runs undo")
    runs_by_state: dict[str, int] = Field(default_factory=dict, description="At the end: number of runs by state")
    requested_at: Moment = Field(description="When the request was planned, by the database's clock")
    at: Moment = Field(description="When it entered the state, by the database's clock")


class IntervalStateChanged(Message):
    """The state of one data interval of a pipeline: that of its latest started run.

    An interval without a started run has no record. ``queued`` means that an attempt was lost or
    released and another follows, and ``staged`` that the output waits for a review. Runs of an undo
    have no states of their own here: ``undone`` means that one has succeeded.
    """

    type: Literal["IntervalStateChanged"] = "IntervalStateChanged"
    pipeline: PipelineName
    interval_start: IntervalStart
    interval_end: IntervalEnd
    state: Literal["running", "queued", "staged", "publishing", "succeeded", "failed", "cancelled", "undone"] = Field(
        description="State of the latest started run"
    )
    backfill_id: BackfillId
    run_id: RunId
    undoes_run_id: UndoneRunId = None
    attempt: Attempt
    at: Moment = Field(description="When it entered the state, by the database's clock")


def interval_key(pipeline: str, start: datetime) -> str:
    """The key of an interval, in UTC: ``flights/2013-01-01T00:00:00+00:00``."""
    return f"{pipeline}/{start.astimezone(UTC).isoformat()}"
