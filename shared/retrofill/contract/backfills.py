"""Messages on ``backfill-requests`` (wishes of users) and ``backfill-events`` (answers and facts of the planner)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from retrofill.contract.base import Message, Moment
from retrofill.contract.fields import BackfillId, Explanation
from retrofill.domain.backfill import OnRunFailure, ReprocessBehavior
from retrofill.domain.bounds import Bound
from retrofill.domain.data import Name
from retrofill.domain.planning import Reason, SkipReason

CAUSE = "Who asked: a user, or on_run_failure after a run failed for good"


class BackfillRequested(Message):
    """A wish: run ``pipeline`` for every logical date in the closed range from ``from`` to ``to``."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillRequested"] = "BackfillRequested"
    id: str | None = Field(None, description="Optional; equal to the key")
    pipeline: str = Field(min_length=1, max_length=200, description="Name of the pipeline")
    from_: Bound = Field(alias="from", description="First logical date; a bare date is its whole day")
    to: Bound = Field(description="Last logical date, inclusive; a bare date is its whole day")
    max_active_runs: int | None = Field(None, ge=1, le=10_000, description="Default: the pipeline's")
    reprocess_behavior: ReprocessBehavior = Field(
        ReprocessBehavior.NONE, description="Which intervals are run again whose latest run ended"
    )
    run_backwards: bool = Field(False, description="Latest logical date first")
    on_run_failure: OnRunFailure = Field(
        OnRunFailure.CONTINUE, description="What becomes of the backfill when a run failed for good"
    )
    conf: dict[str, JsonValue] = Field(default_factory=dict, description="Handed to the tasks")
    latest_code: bool = Field(
        False, description="Whether each run uses the code that was applied last when it starts, not that of the plan"
    )
    triggered_by: str | None = Field(None, max_length=200, description="Who or what asked, for people only")
    finish_by: Moment | None = Field(
        None, description="A deadline for this backfill: DeadlineMissed if it is not done by then"
    )
    finish_by_callback: Name | None = Field(None, description="Function of the allow-list to call when it is missed")


class BackfillPauseRequested(Message):
    """A wish: start no new run; live ones end."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillPauseRequested"] = "BackfillPauseRequested"


class BackfillResumeRequested(Message):
    """A wish: go on."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillResumeRequested"] = "BackfillResumeRequested"


class BackfillCancelRequested(Message):
    """A wish: cancel what has not ended."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillCancelRequested"] = "BackfillCancelRequested"


class BackfillEvent(Message):
    """A fact about one backfill, of the planner."""

    backfill_id: BackfillId
    pipeline: str | None = Field(None, description="Name of the pipeline, where it is known")


class BackfillPlanned(BackfillEvent):
    """The backfill and all its runs exist."""

    type: Literal["BackfillPlanned"] = "BackfillPlanned"
    range_start: Moment = Field(description="Start of the first data interval")
    range_end: Moment = Field(description="End of the last data interval")
    runs: int = Field(ge=1, description="Runs that were made")
    skipped: dict[str, int] = Field(
        default_factory=dict, description=f"Intervals without a run, by reason: {', '.join(SkipReason)}"
    )
    max_active_runs: int = Field(description="Most runs at a time")
    planned_at: Moment = Field(description="When, by the database's clock")


class BackfillRejected(BackfillEvent):
    """The request became nothing; ``reason`` is for programs, ``message`` for people."""

    type: Literal["BackfillRejected"] = "BackfillRejected"
    reason: str = Field(description=f"Why, for programs: {', '.join(Reason)}; new ones may be added")
    message: Explanation
    conflicting_backfill_id: str | None = Field(
        None, description="Of reason overlap: the active backfill that has the range"
    )


class BackfillPaused(BackfillEvent):
    """No new run starts until it is resumed."""

    type: Literal["BackfillPaused"] = "BackfillPaused"
    cause: Literal["user", "run_failure"] = Field("user", description=CAUSE)


class BackfillResumed(BackfillEvent):
    """Runs start again."""

    type: Literal["BackfillResumed"] = "BackfillResumed"


class BackfillCancelling(BackfillEvent):
    """What has not ended is being cancelled."""

    type: Literal["BackfillCancelling"] = "BackfillCancelling"
    cause: Literal["user", "run_failure"] = Field("user", description=CAUSE)


class BackfillEnded(BackfillEvent):
    """All runs ended; ``runs`` counts them by state."""

    runs: dict[str, int] = Field(default_factory=dict, description="Runs by the state in which they ended")
    ended_at: Moment | None = Field(None, description="When, by the database's clock")


class BackfillCancelled(BackfillEnded):
    """A user's cancel is complete."""

    type: Literal["BackfillCancelled"] = "BackfillCancelled"


class BackfillSucceeded(BackfillEnded):
    """Every run succeeded."""

    type: Literal["BackfillSucceeded"] = "BackfillSucceeded"


class BackfillFailed(BackfillEnded):
    """All runs ended and one failed for good, or ``on_run_failure`` cancelled the rest."""

    type: Literal["BackfillFailed"] = "BackfillFailed"


class BackfillCommandRejected(BackfillEvent):
    """A pause, resume or cancel that cannot be followed."""

    type: Literal["BackfillCommandRejected"] = "BackfillCommandRejected"
    command: str = Field(description="Message type of the command")
    message: Explanation
