"""Messages on ``backfill-requests`` (from users) and ``backfill-events`` (from the planner)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from retrofill.contract.base import Message, Moment
from retrofill.contract.fields import BackfillId, Explanation, RunId
from retrofill.domain.backfill import OnRunFailure, ReprocessBehavior
from retrofill.domain.bounds import Bound
from retrofill.domain.data import Name
from retrofill.domain.pipeline import MAX_BATCH
from retrofill.domain.planning import Reason, SkipReason

# Most intervals, and most run ids, that one command names.
MAX_NAMED = 100
CAUSE = "Who requested it: a user, or on_run_failure after a run failed permanently"


class BackfillRequested(Message):
    """A request to run ``pipeline`` for every logical date from ``from`` to ``to``, inclusive."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillRequested"] = "BackfillRequested"
    id: str | None = Field(None, description="Optional; equal to the key")
    pipeline: str = Field(min_length=1, max_length=200, description="Name of the pipeline")
    from_: Bound = Field(alias="from", description="First logical date; a bare date means that whole day")
    to: Bound = Field(description="Last logical date, inclusive; a bare date means that whole day")
    max_active_runs: int | None = Field(None, ge=1, le=10_000, description="Default: the pipeline's")
    batch_size: int | None = Field(
        None, ge=1, le=MAX_BATCH, description="Default: the pipeline's, which it may lower but not raise"
    )
    reprocess_behavior: ReprocessBehavior = Field(
        ReprocessBehavior.NONE, description="Which intervals with a finished run to run again"
    )
    run_backwards: bool = Field(False, description="Latest logical date first")
    on_run_failure: OnRunFailure = Field(
        OnRunFailure.CONTINUE, description="What happens to the backfill when a run fails permanently"
    )
    conf: dict[str, JsonValue] = Field(default_factory=dict, description="Passed to the tasks")
    latest_code: bool = Field(
        False, description="Whether each run uses the code applied last when it starts, not the code at planning"
    )
    triggered_by: str | None = Field(None, max_length=200, description="Who or what requested it; informational")
    finish_by: Moment | None = Field(
        None, description="A deadline for this backfill: DeadlineMissed is published if it is not done by then"
    )
    finish_by_callback: Name | None = Field(
        None, description="Function of the allow-list to call if finish_by is missed"
    )


class BackfillPauseRequested(Message):
    """A request to start no new runs. Live runs continue."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillPauseRequested"] = "BackfillPauseRequested"


class BackfillResumeRequested(Message):
    """A request to start runs again."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillResumeRequested"] = "BackfillResumeRequested"


class BackfillCancelRequested(Message):
    """A request to cancel all runs that have not ended."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillCancelRequested"] = "BackfillCancelRequested"


class RunCancelRequested(Message):
    """A request to cancel some runs of a backfill: all that it names, or none.

    A run whose output was accepted is not cancelled any more.
    """

    of_users: ClassVar[bool] = True
    type: Literal["RunCancelRequested"] = "RunCancelRequested"
    intervals: tuple[Bound, ...] = Field(
        (), max_length=MAX_NAMED, description="Logical dates; a bare date means all intervals that start on that day"
    )
    run_ids: tuple[RunId, ...] = Field((), max_length=MAX_NAMED, description="Ids of runs, beside intervals or instead")


class BackfillEvent(Message):
    """An event about one backfill."""

    backfill_id: BackfillId
    pipeline: str | None = Field(None, description="Name of the pipeline, if known")


class BackfillPlanned(BackfillEvent):
    """The backfill and all its runs exist."""

    type: Literal["BackfillPlanned"] = "BackfillPlanned"
    range_start: Moment = Field(description="Start of the first data interval")
    range_end: Moment = Field(description="End of the last data interval")
    runs: int = Field(ge=1, description="Runs created")
    skipped: dict[str, int] = Field(
        default_factory=dict, description=f"Intervals without a run, by reason: {', '.join(SkipReason)}"
    )
    max_active_runs: int = Field(description="Maximum number of live attempts, each of one run or one batch")
    planned_at: Moment = Field(description="When, by the database's clock")


class BackfillRejected(BackfillEvent):
    """The request was rejected; ``reason`` is for programs, ``message`` for people."""

    type: Literal["BackfillRejected"] = "BackfillRejected"
    reason: str = Field(description=f"Why, for programs: {', '.join(Reason)}; new ones may be added")
    message: Explanation
    conflicting_backfill_id: str | None = Field(
        None, description="For reason overlap: the active backfill that conflicts"
    )


class BackfillPaused(BackfillEvent):
    """No new runs start until the backfill is resumed."""

    type: Literal["BackfillPaused"] = "BackfillPaused"
    cause: Literal["user", "run_failure"] = Field("user", description=CAUSE)


class BackfillResumed(BackfillEvent):
    """Runs start again."""

    type: Literal["BackfillResumed"] = "BackfillResumed"


class BackfillCancelling(BackfillEvent):
    """Runs that have not ended are being cancelled."""

    type: Literal["BackfillCancelling"] = "BackfillCancelling"
    cause: Literal["user", "run_failure"] = Field("user", description=CAUSE)


class BackfillEnded(BackfillEvent):
    """All runs have ended."""

    runs: dict[str, int] = Field(default_factory=dict, description="Number of runs by end state")
    ended_at: Moment | None = Field(None, description="When, by the database's clock")


class BackfillCancelled(BackfillEnded):
    """A user cancelled the backfill, and all runs have ended."""

    type: Literal["BackfillCancelled"] = "BackfillCancelled"


class BackfillSucceeded(BackfillEnded):
    """Every run succeeded."""

    type: Literal["BackfillSucceeded"] = "BackfillSucceeded"


class BackfillFailed(BackfillEnded):
    """All runs have ended.

    One failed permanently or was cancelled by itself, or ``on_run_failure`` cancelled the rest.
    """

    type: Literal["BackfillFailed"] = "BackfillFailed"
    message: str | None = Field(None, description="Why, in one line for people")


class RunCancelAccepted(BackfillEvent):
    """Some runs are being cancelled.

    ``RunCancelled`` follows for each, unless its driver ends it or has its output accepted before:
    then ``RunFailed`` or ``RunSucceeded`` does.
    """

    type: Literal["RunCancelAccepted"] = "RunCancelAccepted"
    run_ids: tuple[RunId, ...] = Field(description="Ids of the runs")
    intervals: tuple[Moment, ...] = Field(description="Starts of their data intervals, in the same order")


class BackfillCommandRejected(BackfillEvent):
    """A command that cannot be carried out."""

    type: Literal["BackfillCommandRejected"] = "BackfillCommandRejected"
    command: str = Field(description="Message type of the command")
    message: Explanation
