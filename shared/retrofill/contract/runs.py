"""Messages on ``run-reports`` (of Spark drivers) and ``run-events`` (facts of the run-starter)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from retrofill.contract.base import Message, Moment
from retrofill.contract.fields import (
    Attempt,
    BackfillId,
    IntervalEnd,
    IntervalStart,
    PipelineName,
    RunId,
    TaskName,
    TryNumber,
)
from retrofill.domain.run import RunState
from retrofill.domain.task_run import TaskState


class ErrorInfo(BaseModel):
    """Why a task or run failed: type, message and the last lines of the traceback."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = Field(max_length=200, description="Name of the exception's class")
    message: str = Field(max_length=4000, description="Its text")
    traceback: str | None = Field(None, max_length=8000, description="The last lines of the traceback")


OutputPath = Annotated[str, Field(min_length=1, max_length=4096, description="An absolute path")]


class Report(Message):
    """What a driver says of one attempt; the backfill's id is the key too."""

    backfill_id: BackfillId
    run_id: RunId
    attempt: int = Field(ge=1, description="Which attempt of the run, from 1: reports of an older one change nothing")
    publication: int = Field(
        0, ge=0, description="Which publication of the attempt's staged output; 0 is the attempt's own driver"
    )
    sent_at: Moment | None = Field(None, description="The driver's clock; for people only")


class RunHeartbeat(Report):
    """The attempt is alive: its lease is extended. The first one says that it is running."""

    type: Literal["RunHeartbeat"] = "RunHeartbeat"


class TaskReported(Report):
    """One task changed its state; ``try_number`` counts its tries inside this attempt from 1."""

    type: Literal["TaskReported"] = "TaskReported"
    task: TaskName
    state: TaskState = Field(description="Its new state")
    try_number: int = Field(1, ge=1, description="Tries of the task inside this attempt, from 1")
    error: ErrorInfo | None = Field(None, description="Of a try that failed: why")


class RunStaged(Report):
    """The attempt's tasks succeeded, and what they wrote waits to be published: from now on it is not run again."""

    type: Literal["RunStaged"] = "RunStaged"
    outputs: tuple[OutputPath, ...] = Field(min_length=1, max_length=1000, description="The folders to be published")


class RunReported(Report):
    """The attempt ended, and with it the publication of what it staged.

    The replica that hosted the driver says ``lost`` when it saw the process end, and ``released`` when it ended the
    process itself because it stops: that does not count against the run.
    """

    type: Literal["RunReported"] = "RunReported"
    state: Literal["succeeded", "failed", "cancelled", "lost", "released"] = Field(description="How it ended")
    error: ErrorInfo | None = Field(None, description="Why it failed or was lost")


class RunEvent(Message):
    """A fact about one run."""

    backfill_id: BackfillId
    pipeline: PipelineName
    run_id: RunId
    attempt: Attempt
    interval_start: IntervalStart
    interval_end: IntervalEnd
    at: Moment = Field(description="When, by the database's clock")


class RunStarted(RunEvent):
    """The driver of this attempt is alive and runs the user's code."""

    type: Literal["RunStarted"] = "RunStarted"
    code_sha256: str | None = Field(
        None, description="Hash of the archive with the attempt's code; none where it is imported from where it lies"
    )


class RunPublishing(RunEvent):
    """The attempt's output was accepted: it is being published, by its driver or, where that was lost, by another."""

    type: Literal["RunPublishing"] = "RunPublishing"
    outputs: tuple[OutputPath, ...] = Field(description="The folders that are being published")
    publication: int = Field(
        description="0 is the attempt's own driver; counts those who publish it after one was lost"
    )


class RunSucceeded(RunEvent):
    """The interval is processed."""

    type: Literal["RunSucceeded"] = "RunSucceeded"


class RunFailed(RunEvent):
    """The run failed for good."""

    type: Literal["RunFailed"] = "RunFailed"
    error: ErrorInfo | None = Field(None, description="Why, where it is known")


class RunAttemptLost(RunEvent):
    """The driver was lost; the run goes back to the queue, or ends where ``state`` says so."""

    type: Literal["RunAttemptLost"] = "RunAttemptLost"
    state: RunState = Field(description="What the run is now: queued, or the state in which it ended")
    error: ErrorInfo | None = Field(None, description="How the driver was lost, where it is known")


class RunCancelled(RunEvent):
    """The run was cancelled before it ended."""

    type: Literal["RunCancelled"] = "RunCancelled"


class TaskStateChanged(RunEvent):
    """One task of the run changed its state."""

    type: Literal["TaskStateChanged"] = "TaskStateChanged"
    task: TaskName
    state: TaskState = Field(description="Its new state")
    try_number: TryNumber
    error: ErrorInfo | None = Field(None, description="Of a try that failed: why")
