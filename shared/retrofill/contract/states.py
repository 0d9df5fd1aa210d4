"""Messages on the compacted topics ``backfill-states`` and ``interval-states``: the last one of a key is how things stand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from retrofill.contract.base import Message, Moment
from retrofill.contract.fields import Attempt, BackfillId, IntervalEnd, IntervalStart, PipelineName, RunId
from retrofill.domain.backfill import BackfillState


class BackfillStateChanged(Message):
    """How a backfill stands."""

    type: Literal["BackfillStateChanged"] = "BackfillStateChanged"
    backfill_id: BackfillId
    pipeline: PipelineName
    state: BackfillState = Field(description="Its state now")
    range_start: Moment = Field(description="Start of the first data interval")
    range_end: Moment = Field(description="End of the last data interval")
    runs: int = Field(description="Runs that were planned")
    runs_by_state: dict[str, int] = Field(default_factory=dict, description="At its end: runs by state")
    requested_at: Moment = Field(description="When the request was handled, by the database's clock")
    at: Moment = Field(description="Since when, by the database's clock")


class IntervalStateChanged(Message):
    """How the processing of one data interval of a pipeline stands: the state of its latest run that was started.

    An interval that no run was started for has no record. ``queued`` says that an attempt was lost and another follows.
    """

    type: Literal["IntervalStateChanged"] = "IntervalStateChanged"
    pipeline: PipelineName
    interval_start: IntervalStart
    interval_end: IntervalEnd
    state: Literal["running", "queued", "publishing", "succeeded", "failed", "cancelled"] = Field(
        description="State of the latest run that was started"
    )
    backfill_id: BackfillId
    run_id: RunId
    attempt: Attempt
    at: Moment = Field(description="Since when, by the database's clock")


def interval_key(pipeline: str, start: datetime) -> str:
    """The key of an interval: ``flights/2013-01-01T00:00:00+00:00``, always in UTC."""
    return f"{pipeline}/{start.astimezone(UTC).isoformat()}"
