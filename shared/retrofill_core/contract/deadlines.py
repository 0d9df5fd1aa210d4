"""Messages on ``deadlines``, ``deadline-missed``, ``callback-requests`` and ``callback-events``."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from retrofill_core.contract.base import (
    AlertName,
    BackfillId,
    CallbackId,
    DeadlineId,
    DueAt,
    Explanation,
    Facts,
    IntervalEnd,
    IntervalStart,
    Message,
    Moment,
    PipelineName,
    RunId,
)
from retrofill_core.contract.runs import ErrorInfo
from retrofill_core.domain.callback import Occasion
from retrofill_core.domain.deadline import Reference, Scope

CALLED = (
    "Name of the callback's function or receiver, its topic, or of its address the host, like https://example.org/***"
)


class DeadlineArmed(Message):
    """A hint to the watcher: this shard has a deadline due soon that it may not know yet."""

    type: Literal["DeadlineArmed"] = "DeadlineArmed"
    deadline_id: DeadlineId
    due_at: DueAt


class DeadlineResolved(Message):
    """A hint to the watcher: what this deadline watches has ended, so it can be decided now."""

    type: Literal["DeadlineResolved"] = "DeadlineResolved"
    deadline_id: DeadlineId


class DeadlineFacts(Facts):
    """Everything about a missed deadline: a subscriber needs no lookup."""

    deadline_id: int = Field(description="Id of the deadline")
    alert: AlertName
    scope: Scope = Field(Scope.RUN, description="What must be done by then")
    pipeline: PipelineName
    backfill_id: BackfillId
    run_id: int | None = Field(None, description="Id of the run; absent for a deadline of the whole backfill")
    task: str | None = Field(None, description="The task, for a deadline of one task")
    interval_start: Moment | None = Field(None, description="Start of the run's data interval: its logical date")
    interval_end: Moment | None = Field(None, description="End of the run's data interval")
    reference: Reference = Field(description="The moment the deadline counts from")
    interval_seconds: float | None = Field(None, description="Added to the reference moment; negative for a warning")
    due_at: DueAt
    detected_at: Moment = Field(description="When the miss was decided, by the database's clock")
    run_state: str = Field(description="State of the run, or of the task or backfill, depending on the scope")
    run_attempt: int = Field(0, description="Attempts of the run so far")
    runs_done: int = Field(0, description="Runs of the backfill that have ended in any state")
    runs: int = Field(0, description="Runs of the backfill")
    recovered_at: Moment | None = Field(None, description="In a digest: when it succeeded after the miss")


class DeadlineMissed(DeadlineFacts, Message):
    """The deadline passed before its run, task or backfill was done, by the database's clock."""

    type: Literal["DeadlineMissed"] = "DeadlineMissed"
    callback: str | None = Field(None, description=CALLED)


class DeadlinesMissed(Message):
    """The digest of an alert: the deadlines missed in one window. Each miss is in one digest only.

    A digest lists the first thousand, in several parts if they do not fit one message; ``count``
    counts all. The others are in Postgres: rows of ``deadline`` with this ``digest_id``.
    """

    type: Literal["DeadlinesMissed"] = "DeadlinesMissed"
    digest_id: int = Field(description="Id of the deadline that opened it; the key")
    alert: AlertName
    pipeline: PipelineName
    opened_at: Moment = Field(description="When its first miss was decided, by the database's clock")
    closed_at: Moment = Field(description="When its window ended, by the database's clock")
    count: int = Field(description="Deadlines missed in the window, listed or not")
    not_listed: int = Field(0, description="Misses beyond the first thousand, which no part lists")
    part: int = Field(1, description="Number of this part, from 1")
    parts: int = Field(1, description="Number of parts")
    missed: list[DeadlineFacts] = Field(description="The missed deadlines of this part")
    callback: str | None = Field(None, description=CALLED)


class DeadlineRecovered(Message):
    """The run, task or backfill succeeded after it missed its deadline, which stays missed."""

    type: Literal["DeadlineRecovered"] = "DeadlineRecovered"
    deadline_id: DeadlineId
    alert: AlertName
    scope: Scope = Field(Scope.RUN, description="What had to be done by then")
    pipeline: PipelineName
    backfill_id: BackfillId
    run_id: int | None = Field(None, description="Id of the run; absent for a deadline of the whole backfill")
    task: str | None = Field(None, description="The task, for a deadline of one task")
    interval_start: Moment | None = Field(None, description="Start of the run's data interval: its logical date")
    interval_end: Moment | None = Field(None, description="End of the run's data interval")
    due_at: DueAt
    recovered_at: Moment = Field(description="When it succeeded, by the database's clock")
    late_seconds: float = Field(description="Seconds from the deadline to the success")


class CallbackRequested(Message):  # type: ignore[no-redef]  # the plugin takes the field kwargs for **kwargs
    """A hint to the callback-runner: there is a callback to call."""

    type: Literal["CallbackRequested"] = "CallbackRequested"
    deadline_id: CallbackId
    callback: str = Field(description=CALLED)
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Of a deadline: the alert's kwargs with references replaced; omitted if too large",
    )


class CallbackReplayRequested(Message):
    """A request to replay a callback that failed permanently."""

    of_users: ClassVar[bool] = True
    type: Literal["CallbackReplayRequested"] = "CallbackReplayRequested"
    deadline_id: CallbackId
    force: bool = Field(False, description="Also if its receiver got a newer callback about the same backfill since")


class CallbackEvent(Message):
    """An event about one callback."""

    deadline_id: CallbackId
    callback: str = Field(description=CALLED)
    kind: Literal["function", "webhook", "topic"] = Field("function", description="Kind of callback")
    attempts: int = Field(0, description="Calls so far, under one idempotency key")
    runners_lost: int = Field(0, description="Calls during which the runner died: the callee may have received them")
    occasion: Occasion | None = Field(None, description="What it is called for; absent if a deadline was missed")
    backfill_id: str | None = Field(None, description="With an occasion: id of the backfill")


class CallbackSucceeded(CallbackEvent):
    """The callback succeeded."""

    type: Literal["CallbackSucceeded"] = "CallbackSucceeded"


class CallbackFailed(CallbackEvent):
    """The callback failed permanently, after ``attempts`` calls."""

    type: Literal["CallbackFailed"] = "CallbackFailed"
    message: str = Field(description="The error of the last call")
    uncertain: bool = Field(False, description="Whether the last call may have succeeded: its result is unknown")


class CallbackDropped(CallbackEvent):
    """The callback is not called: a newer one tells how things stand, or its runs were all retried before."""

    type: Literal["CallbackDropped"] = "CallbackDropped"
    message: Explanation


class CallbackReplayed(CallbackEvent):
    """A failed callback is called again, on request."""

    type: Literal["CallbackReplayed"] = "CallbackReplayed"


class CallbackReplayRejected(Message):
    """A request to replay a callback was refused."""

    type: Literal["CallbackReplayRejected"] = "CallbackReplayRejected"
    deadline_id: CallbackId
    message: Explanation


class FailedRun(Facts):
    """A run that failed permanently."""

    run_id: RunId
    interval_start: IntervalStart
    interval_end: IntervalEnd
    attempt: int = Field(description="How often the run has begun")
    lost_attempts: int = Field(0, description="How many of its drivers were lost")
    failed_at: Moment = Field(description="When, by the database's clock")
    error: ErrorInfo | None = Field(None, description="Why, without the traceback; a long message is cut")


class RunsFailed(Message):
    """The runs that a callback of ``on_run_failed`` is called for: the failures of one backfill.

    It is published when their window ends, before the first call. It lists the first hundred;
    ``count`` counts all. The others are in Postgres: rows of ``callback_run`` with this callback.
    """

    type: Literal["RunsFailed"] = "RunsFailed"
    callback_id: int = Field(description="Id of the callback; the key")
    pipeline: PipelineName
    backfill_id: BackfillId
    count: int = Field(ge=1, description="Runs that failed in the window, listed or not; each is in one callback")
    not_listed: int = Field(0, description="Failures beyond the first hundred, which are not listed")
    failed: list[FailedRun] = Field(description="The failed runs, in the order of their failures")
    runs: int = Field(description="Runs of the backfill")
    runs_done: int = Field(description="Runs of the backfill that have ended in any state")
    closed_at: Moment = Field(description="When the window ended, by the database's clock")
    callback: str = Field(description=CALLED)
    command: str = Field(description="Shell command that shows the backfill")
