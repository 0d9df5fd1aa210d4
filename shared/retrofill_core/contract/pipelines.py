"""Messages on ``pipelines`` and ``pipeline-events``."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from retrofill_core.contract.base import Explanation, Message, PipelineName
from retrofill_core.domain.pipeline import PipelineDefinition


class PipelineApplied(Message):
    """The complete definition of a pipeline. A later one replaces it for later backfills."""

    of_users: ClassVar[bool] = True
    type: Literal["PipelineApplied"] = "PipelineApplied"
    pipeline: PipelineDefinition = Field(description="The definition; its name is the key")


class PipelineAccepted(Message):
    """The definition is active."""

    type: Literal["PipelineAccepted"] = "PipelineAccepted"
    pipeline: PipelineName
    changed: bool = Field(description="Whether it differs from the previous definition")
    schedule_before: str | None = Field(
        None,
        description="The previous schedule, if the schedule or time zone changed: intervals done by it still count",
    )
    timezone_before: str | None = Field(None, description="The previous time zone, in the same case")


class PipelineRejected(Message):
    """The definition was refused."""

    type: Literal["PipelineRejected"] = "PipelineRejected"
    pipeline: PipelineName
    message: Explanation


class PipelineRemoved(Message):
    """A null value removed the pipeline. New backfills of it are rejected; active ones continue."""

    type: Literal["PipelineRemoved"] = "PipelineRemoved"
    pipeline: PipelineName
