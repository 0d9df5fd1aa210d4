"""Messages on the compacted topics ``backfill-states`` and ``interval-states``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from retrofill_core.contract.base import Message, Moment
from retrofill_core.contract.fields import (
    Attempt,
    BackfillId,
    IntervalEnd,
    IntervalStart,
    PipelineName,
    RunId,
    UndoneRunId,
)
from retrofill_core.domain.backfill import BackfillState


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
