"""Messages on ``backfill-requests`` (from users) and ``backfill-events`` (from the planner)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator

from retrofill.sdk.names import MAX_BATCH
from retrofill_core.contract.base import BackfillId, Cost, Explanation, Message, Moment, RunId
from retrofill_core.domain.backfill import Budget, OnRunFailure, Publish, ReprocessBehavior
from retrofill_core.domain.data import Name
from retrofill_core.domain.planning import Reason, SkipReason, Span
from retrofill_core.domain.schedule import Bound

# Most intervals, and most run ids, that one command names.
MAX_NAMED = 100
# Most logical dates of one request: with time and offset, they fit a Kafka message of the usual size.
MAX_DATES = 10_000
_RANGE_OR_DATES: dict[str, Any] = {"anyOf": [{"required": ["from", "to"]}, {"required": ["intervals"]}]}
# Most runs that a reply lists.
MAX_LISTED = 1000
# What is said of runs whose cancel was requested before.
CANCELLING = "cancelling"
ZONE = "The pipeline's time zone"
CODE = "Hash of the shipped code"
CAUSE = "Who requested it: a user, or on_run_failure after a run failed permanently"


class BackfillRequested(Message):
    """A request to run ``pipeline`` for every logical date from ``from`` to ``to``, inclusive, or
    for those in ``intervals``.
    """

    model_config = ConfigDict(json_schema_extra=_RANGE_OR_DATES)
    of_users: ClassVar[bool] = True
    type: Literal["BackfillRequested"] = "BackfillRequested"
    id: str | None = Field(None, description="Optional; equal to the key")
    pipeline: str = Field(min_length=1, max_length=200, description="Name of the pipeline")
    from_: Bound | None = Field(None, alias="from", description="First logical date; a bare date means that whole day")
    to: Bound | None = Field(None, description="Last logical date, inclusive; a bare date means that whole day")
    intervals: tuple[Bound, ...] = Field(
        (),
        max_length=MAX_DATES,
        description="Logical dates instead of from and to; a bare date means all intervals that start on that day",
    )
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
    publish: Publish = Field(
        Publish.AT_ONCE, description="review: staged output is not published before BackfillPublishRequested"
    )
    triggered_by: str | None = Field(None, max_length=200, description="Who or what requested it; informational")
    finish_by: Moment | None = Field(
        None, description="A deadline for this backfill: DeadlineMissed is published if it is not done by then"
    )
    finish_by_callback: Name | None = Field(
        None, description="Function of the allow-list to call if finish_by is missed"
    )
    budget: Budget | None = Field(None, description="What it may use: the backfill pauses when a limit is reached")
    interval_ends: tuple[Moment, ...] = Field(
        (),
        max_length=MAX_DATES,
        description="Where the intervals end, which are moments then: the request is rejected if the pipeline's "
        "schedule or time zone makes others of them by now",
    )

    @model_validator(mode="after")
    def _range_or_dates(self) -> Self:
        given = [name for name, value in (("from", self.from_), ("to", self.to)) if value is not None]
        if self.intervals and given:
            raise ValueError(f"it has intervals and {given[0]!r}: give either from and to, or intervals")
        if not self.intervals and len(given) < 2:
            missing = " and ".join(repr(name) for name in ("from", "to") if name not in given)
            raise ValueError(f"it has no {missing}: give from and to, or intervals")
        if self.interval_ends and len(self.interval_ends) != len(self.intervals):
            raise ValueError(f"it has {len(self.intervals):,} intervals and {len(self.interval_ends):,} interval_ends")
        if self.interval_ends and not all(isinstance(each, datetime) for each in self.intervals):
            raise ValueError("with interval_ends, the intervals are moments: write them like 2024-01-31T00:00:00+00:00")
        return self

    @property
    def spans(self) -> tuple[Span, ...]:
        """The requested logical dates, as closed ranges."""
        if self.from_ is not None and self.to is not None:
            return ((self.from_, self.to),)
        return tuple((each, each) for each in self.intervals)

    @property
    def expected(self) -> Sequence[tuple[datetime, datetime]]:
        """The very intervals that it is about, if it names their ends."""
        starts = (each for each in self.intervals if isinstance(each, datetime))
        return list(zip(starts, self.interval_ends, strict=True)) if self.interval_ends else ()

    @property
    def budget_until(self) -> datetime | None:
        """When its budget ends, if it has such a limit."""
        return None if self.budget is None else self.budget.until


class BackfillUndoRequested(Message):
    """A request to restore what the runs of an ended backfill replaced, by a backfill of its own.

    An interval is left alone if its output was published again since, or if what it replaced is no longer kept.
    """

    of_users: ClassVar[bool] = True
    type: Literal["BackfillUndoRequested"] = "BackfillUndoRequested"
    id: str | None = Field(None, description="Optional; equal to the key: the id of the new backfill")
    undoes: str = Field(min_length=1, max_length=200, description="Id of the ended backfill")
    from_: Bound | None = Field(
        None, alias="from", description="First logical date to undo; a bare date means that whole day. Default: all"
    )
    to: Bound | None = Field(
        None, description="Last logical date to undo, inclusive; a bare date means that whole day. Default: all"
    )
    max_active_runs: int | None = Field(None, ge=1, le=10_000, description="Default: that of the undone backfill")
    on_run_failure: OnRunFailure = Field(
        OnRunFailure.CONTINUE, description="What happens to the backfill when a run fails permanently"
    )
    publish: Publish = Field(
        Publish.AT_ONCE, description="review: what is restored is not published before BackfillPublishRequested"
    )
    triggered_by: str | None = Field(None, max_length=200, description="Who or what requested it; informational")


class BackfillPauseRequested(Message):
    """A request to start no new runs. Live runs continue."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillPauseRequested"] = "BackfillPauseRequested"


class BackfillResumeRequested(Message):
    """A request to start runs again. Refused while the budget is used up."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillResumeRequested"] = "BackfillResumeRequested"
    budget: Budget | None = Field(
        None, description="Replaces the whole budget, counted from the backfill's request; without limits: removes it"
    )


class BackfillPublishRequested(Message):
    """A request to publish what a backfill in review has staged, onto what it was compared with.

    Where somebody has changed that since, the output waits for another review.
    """

    of_users: ClassVar[bool] = True
    type: Literal["BackfillPublishRequested"] = "BackfillPublishRequested"
    force: bool = Field(
        False, description="Whether to publish over what somebody has changed since it was compared, too"
    )
    review: int | None = Field(
        None,
        ge=0,
        description="The review that is approved, as BackfillInReview says, from 0: refused if another one has begun since",
    )
    intervals: tuple[Bound, ...] = Field(
        (),
        max_length=MAX_DATES,
        description="Logical dates of the runs to publish, while the others wait for the next review; a bare date means all "
        "intervals that start on that day. Default: all",
    )


class BackfillDiscardRequested(Message):
    """A request to cancel the staged runs of a backfill in review, so that they publish nothing."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillDiscardRequested"] = "BackfillDiscardRequested"


class BackfillCancelRequested(Message):
    """A request to cancel all runs that have not ended.

    Those whose output was accepted are published nevertheless, unless it waits for a review.
    """

    of_users: ClassVar[bool] = True
    type: Literal["BackfillCancelRequested"] = "BackfillCancelRequested"


class RunCancelRequested(Message):
    """A request to cancel some runs of a backfill.

    Those that have ended, and those whose output was accepted, stay as they are. If it names a run that the backfill does not
    have, none is cancelled.
    """

    of_users: ClassVar[bool] = True
    type: Literal["RunCancelRequested"] = "RunCancelRequested"
    intervals: tuple[Bound, ...] = Field(
        (), max_length=MAX_NAMED, description="Logical dates; a bare date means all intervals that start on that day"
    )
    run_ids: tuple[RunId, ...] = Field((), max_length=MAX_NAMED, description="Ids of runs, beside intervals or instead")


class RunRetryRequested(Message):
    """A request to run failed runs of an active backfill again: all that it names, or none.

    Each gets a new run, which replaces it.
    """

    of_users: ClassVar[bool] = True
    type: Literal["RunRetryRequested"] = "RunRetryRequested"
    all_failed: bool = Field(False, description="Retry all failed runs, instead of those of intervals")
    latest_code: bool = Field(
        False,
        description="Whether these runs, and all others of the backfill that start from now on, use the code applied last "
        "when they start, not the code at planning",
    )
    intervals: tuple[Bound, ...] = Field(
        (), max_length=MAX_NAMED, description="Logical dates; a bare date means all intervals that start on that day"
    )


class BackfillChangeRequested(Message):
    """A request to change an active backfill. What is not given stays as it is."""

    of_users: ClassVar[bool] = True
    type: Literal["BackfillChangeRequested"] = "BackfillChangeRequested"
    max_active_runs: int | None = Field(
        None, ge=1, le=10_000, description="Maximum number of live attempts; those beyond a lower one go on"
    )
    batch_size: int | None = Field(
        None, ge=1, le=MAX_BATCH, description="Maximum runs of an attempt, which may not exceed the pipeline's"
    )
    on_run_failure: OnRunFailure | None = Field(
        None, description="What happens when a run fails permanently; earlier failures no longer count"
    )


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
    pipeline_max_active_runs: int | None = Field(
        None, description="The pipeline's own maximum, for all its backfills together"
    )
    recognized: int = Field(
        0,
        description="How many of those that already exist were done by runs of other intervals, as of an earlier schedule",
    )
    partly_done: int = Field(
        0, description="Of the runs: how many have an interval of which runs of other intervals have done a part"
    )
    undoes: str | None = Field(None, description="Id of the backfill whose output its runs undo")
    timezone: str | None = Field(None, description=ZONE)
    code_sha256: str | None = Field(None, description=f"{CODE} that its runs use")
    latest_code: bool = Field(False, description="Whether each run uses the code applied last when it starts instead")
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
    cause: Literal["user", "run_failure", "budget"] = Field("user", description=f"{CAUSE}, or its used-up budget")
    message: str | None = Field(None, description="For the budget: which limit is reached, in one line for people")


class BackfillResumed(BackfillEvent):
    """Runs start again."""

    type: Literal["BackfillResumed"] = "BackfillResumed"


class BackfillInReview(BackfillEvent):
    """All its runs have ended or staged their output, which waits for a request to publish or discard it."""

    type: Literal["BackfillInReview"] = "BackfillInReview"
    runs: dict[str, int] = Field(description="Number of runs by state")
    review: int = Field(0, description="How many reviews of it were approved before")
    changed: int = Field(
        0,
        description="Runs whose output was approved and not published, because somebody changed what it would replace",
    )
    changed_intervals: tuple[Moment, ...] = Field(
        (), description=f"Starts of their data intervals, the first {MAX_LISTED:,}"
    )


class BackfillApproved(BackfillEvent):
    """What it has staged is being published."""

    type: Literal["BackfillApproved"] = "BackfillApproved"
    force: bool = Field(False, description="Whether over what somebody has changed since it was compared, too")
    runs: int | None = Field(
        None, description="If the request named some: how many runs these are. Others wait for review"
    )


class BackfillCancelling(BackfillEvent):
    """Runs that have not ended are being cancelled."""

    type: Literal["BackfillCancelling"] = "BackfillCancelling"
    cause: Literal["user", "run_failure"] = Field("user", description=CAUSE)


class BackfillEnded(BackfillEvent):
    """All runs have ended."""

    runs: dict[str, int] = Field(default_factory=dict, description="Number of runs by end state")
    ended_at: Moment | None = Field(None, description="When, by the database's clock")
    range_start: Moment | None = Field(None, description="Start of its first data interval")
    range_end: Moment | None = Field(None, description="End of its last data interval")
    timezone: str | None = Field(None, description=ZONE)
    undoes: str | None = Field(
        None, description="Id of the backfill whose output its runs have undone, if it is an undo"
    )
    command: str | None = Field(None, description="Shell command that shows the backfill")


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


class BackfillProgress(BackfillEvent):
    """How far an active backfill is: at most one in five seconds, and none if no run's state changed.

    The estimate is absent while nothing is known or the backfill does not start runs. Its range
    holds the true end about four times out of five.
    """

    type: Literal["BackfillProgress"] = "BackfillProgress"
    sequence: int = Field(ge=1, description="Rises by one with each of the backfill")
    at: Moment = Field(description="When, by the database's clock")
    runs: int = Field(description="Planned runs")
    runs_by_state: dict[str, int] = Field(description="Number of runs by state")
    runs_per_second: float | None = Field(None, description="The pace of the last attempts")
    estimated_end: Moment | None = Field(None, description="When it probably ends")
    earliest_end: Moment | None = Field(None, description="Start of the estimate's range")
    latest_end: Moment | None = Field(None, description="End of the estimate's range")
    cost: Cost | None = Field(None, description="Resources that Spark has reported so far")


class RunCancelAccepted(BackfillEvent):
    """The runs that were named and can be cancelled are being cancelled. There may be none.

    ``RunCancelled`` follows for each, unless its driver ends it or has its output accepted before:
    then ``RunFailed`` or ``RunSucceeded`` does.
    """

    type: Literal["RunCancelAccepted"] = "RunCancelAccepted"
    run_ids: tuple[RunId, ...] = Field(description="Ids of the runs")
    intervals: tuple[Moment, ...] = Field(description="Starts of their data intervals, in the same order")
    left: dict[str, int] = Field(
        default_factory=dict,
        description=f"How many other runs were named and stay as they are, by state; `{CANCELLING}`: of earlier requests",
    )


class RunsRetried(BackfillEvent):
    """Failed runs were replaced by new ones, which are queued."""

    type: Literal["RunsRetried"] = "RunsRetried"
    runs: int = Field(ge=1, description="Number of new runs")
    code_sha256: str | None = Field(
        None,
        description=f"{CODE} that they use: that of the backfill's planning, or with latest_code the one applied last",
    )
    latest_code: bool = Field(False, description="Whether each run uses the code applied last when it starts")
    newer_code_sha256: str | None = Field(
        None,
        description="Hash of code that was applied since and that they do not use, as latest_code was not requested",
    )
    undoes: str | None = Field(
        None, description="Id of the backfill whose output they undo, without any code of the pipeline"
    )
    run_ids: tuple[RunId, ...] = Field((), description=f"Ids of the new runs, if they are at most {MAX_LISTED:,}")
    intervals: tuple[Moment, ...] = Field((), description="Starts of their data intervals, in the same order")


class BackfillChanged(BackfillEvent):
    """The backfill was changed: its values from now on."""

    type: Literal["BackfillChanged"] = "BackfillChanged"
    max_active_runs: int = Field(description="Maximum number of live attempts")
    pipeline_max_active_runs: int | None = Field(
        None, description="The pipeline's own maximum, for all its backfills together"
    )
    batch_size: int = Field(description="Maximum runs of an attempt")
    on_run_failure: OnRunFailure = Field(description="What happens when a run fails permanently")


class BackfillCommandRejected(BackfillEvent):
    """A command that cannot be carried out."""

    type: Literal["BackfillCommandRejected"] = "BackfillCommandRejected"
    command: str = Field(description="Message type of the command")
    message: Explanation
