"""Messages on ``deadlines``, ``deadline-missed``, ``callback-requests`` and ``callback-events``."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from retrofill.contract.base import Facts, Message, Moment
from retrofill.contract.fields import AlertName, BackfillId, DeadlineId, DueAt, Explanation, PipelineName
from retrofill.domain.alert import Reference
from retrofill.domain.deadline import Scope


class DeadlineArmed(Message):
    """A hint to the watcher: this shard has a deadline in the near future that its memory may not have yet."""

    type: Literal["DeadlineArmed"] = "DeadlineArmed"
    deadline_id: DeadlineId
    due_at: DueAt


class DeadlineResolved(Message):
    """A hint to the watcher: what this deadline is about ended, so it can be decided now."""

    type: Literal["DeadlineResolved"] = "DeadlineResolved"
    deadline_id: DeadlineId


class DeadlineFacts(Facts):
    """What a deadline is about, complete: a subscriber need not ask back."""

    deadline_id: int = Field(description="Id of the deadline")
    alert: AlertName
    scope: Scope = Field(Scope.RUN, description="What must be done by the moment")
    pipeline: PipelineName
    backfill_id: BackfillId
    run_id: int | None = Field(None, description="Id of the run; not there for a deadline of the whole backfill")
    task: str | None = Field(None, description="The task, for a deadline of one task")
    interval_start: Moment | None = Field(None, description="Start of the run's data interval: its logical date")
    interval_end: Moment | None = Field(None, description="End of the run's data interval")
    reference: Reference = Field(description="What the moment counts from")
    interval_seconds: float | None = Field(None, description="Added to the reference's moment; negative for a warning")
    due_at: DueAt
    detected_at: Moment = Field(description="When the miss was decided, by the database's clock")
    run_state: str = Field(description="State of the run (of the task or the backfill where it is about that)")
    run_attempt: int = Field(0, description="Attempts of the run so far")
    runs_done: int = Field(0, description="Runs of the backfill that ended, however they did")
    runs: int = Field(0, description="Runs of the backfill")
    recovered_at: Moment | None = Field(None, description="In a digest: when it was done after all")


class DeadlineMissed(DeadlineFacts, Message):
    """It was not done at the moment, by the database's clock."""

    type: Literal["DeadlineMissed"] = "DeadlineMissed"
    callback: str | None = Field(None, description="Name, address or topic of the callback")


class DeadlinesMissed(Message):
    """The digest of an alert: all of its deadlines that were missed in a window, each in one digest only.

    A digest lists the first thousand, in several parts where they do not fit into one message; ``count`` is of all. The
    others are in Postgres: rows of ``deadline`` with this ``digest_id``.
    """

    type: Literal["DeadlinesMissed"] = "DeadlinesMissed"
    digest_id: int = Field(description="Id of the deadline that opened it; the key")
    alert: AlertName
    pipeline: PipelineName
    opened_at: Moment = Field(description="When its first miss was decided, by the database's clock")
    closed_at: Moment = Field(description="When its window ended, by the database's clock")
    count: int = Field(description="Deadlines that were missed in the window, listed or not")
    not_listed: int = Field(0, description="How many of them are in no part, as they are too many")
    part: int = Field(1, description="Which part this is, from 1")
    parts: int = Field(1, description="How many parts there are")
    missed: list[DeadlineFacts] = Field(description="The deadlines of this part")
    callback: str | None = Field(None, description="Name, address or topic of the callback")


class DeadlineRecovered(Message):
    """What had missed its deadline succeeded after all; the deadline stays missed."""

    type: Literal["DeadlineRecovered"] = "DeadlineRecovered"
    deadline_id: DeadlineId
    alert: AlertName
    scope: Scope = Field(Scope.RUN, description="What had to be done by the moment")
    pipeline: PipelineName
    backfill_id: BackfillId
    run_id: int | None = Field(None, description="Id of the run; not there for a deadline of the whole backfill")
    task: str | None = Field(None, description="The task, for a deadline of one task")
    interval_start: Moment | None = Field(None, description="Start of the run's data interval: its logical date")
    interval_end: Moment | None = Field(None, description="End of the run's data interval")
    due_at: DueAt
    recovered_at: Moment = Field(description="When it was done")
    late_seconds: float = Field(description="Seconds from the moment to when it was done")


class CallbackRequested(Message):  # type: ignore[no-redef]  # the plugin takes the field kwargs for **kwargs
    """There is a callback row to be called."""

    type: Literal["CallbackRequested"] = "CallbackRequested"
    deadline_id: DeadlineId
    callback: str = Field(description="Name, address or topic of the callback")
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="The alert's kwargs, filled in; left out where too large"
    )


class CallbackReplayRequested(Message):
    """A wish: call a callback that failed for good once more, from its first try."""

    of_users: ClassVar[bool] = True
    type: Literal["CallbackReplayRequested"] = "CallbackReplayRequested"
    deadline_id: DeadlineId


class CallbackEvent(Message):
    """What became of a callback."""

    deadline_id: DeadlineId
    callback: str = Field(description="Name, address or topic of the callback")
    kind: Literal["function", "webhook", "topic"] = Field("function", description="What is called")
    attempts: int = Field(0, description="Calls so far, under one idempotency key")
    runners_lost: int = Field(0, description="Of these, calls during which the runner died: they may have been done")


class CallbackSucceeded(CallbackEvent):
    """The callback returned."""

    type: Literal["CallbackSucceeded"] = "CallbackSucceeded"


class CallbackFailed(CallbackEvent):
    """The callback failed for good, after ``attempts`` calls."""

    type: Literal["CallbackFailed"] = "CallbackFailed"
    message: str = Field(description="The error of the last call")
    uncertain: bool = Field(False, description="The last call may have been done all the same: its end is not known")


class CallbackReplayed(CallbackEvent):
    """A callback that had failed is to be called again, because somebody asked for it."""

    type: Literal["CallbackReplayed"] = "CallbackReplayed"


class CallbackReplayRejected(Message):
    """A callback that is not to be called again."""

    type: Literal["CallbackReplayRejected"] = "CallbackReplayRejected"
    deadline_id: DeadlineId
    message: Explanation
