"""Fields that several messages share, with their descriptions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from retrofill_core.contract.base import Facts, Moment

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


class Cost(Facts):
    """The resources that Spark reported."""

    core_seconds: float | None = Field(None, ge=0, description="Seconds of executor cores: the run time of all tasks")
    shuffle_bytes: int | None = Field(None, ge=0, description="Bytes written for shuffles")
    rows_read: int | None = Field(None, ge=0, description="Rows read from sources")
    rows_written: int | None = Field(None, ge=0, description="Rows written to sinks")

    def shared_by(self, runs: int) -> Cost:
        """The part of each of so many runs that were processed in one go."""

        def part(whole: int | None) -> int | None:
            return None if whole is None else whole // runs

        return Cost(
            core_seconds=None if self.core_seconds is None else self.core_seconds / runs,
            shuffle_bytes=part(self.shuffle_bytes),
            rows_read=part(self.rows_read),
            rows_written=part(self.rows_written),
        )
