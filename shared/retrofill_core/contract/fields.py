"""Fields that several messages share, with their descriptions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from retrofill_core.contract.base import Moment

PipelineName = Annotated[str, Field(description="Name of the pipeline")]
BackfillId = Annotated[str, Field(description="Id of the backfill: the key of its request")]
RunId = Annotated[int, Field(description="Id of the run")]
UndoneRunId = Annotated[int | None, Field(description="Of an undo: id of the run whose output it takes back")]
Attempt = Annotated[int, Field(description="Attempt of the run, from 1")]
TaskName = Annotated[str, Field(description="Name of the task")]
TryNumber = Annotated[int, Field(description="Number of the task's try within this attempt, from 1")]
DeadlineId = Annotated[int, Field(description="Id of the deadline, and of its callback")]
CallbackId = Annotated[
    int, Field(description="Id of the callback: that of its deadline, or its own if it is about a run or backfill")
]
AlertName = Annotated[str, Field(description="Name of the pipeline's alert, or finish_by for a request's own deadline")]
IntervalStart = Annotated[Moment, Field(description="Start of the data interval: the logical date")]
IntervalEnd = Annotated[Moment, Field(description="End of the data interval, exclusive")]
DueAt = Annotated[Moment, Field(description="The moment by which it had to be done")]
Explanation = Annotated[str, Field(description="Why, in one line for people")]
