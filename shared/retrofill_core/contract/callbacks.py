"""Arguments of callbacks for failed runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from retrofill_core.contract.base import Facts, Message, Moment
from retrofill_core.contract.fields import BackfillId, IntervalEnd, IntervalStart, PipelineName, RunId
from retrofill_core.contract.runs import ErrorInfo


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
    callback: str = Field(description="Name, address or topic of the callback")
    command: str = Field(description="Shell command that shows the backfill")
