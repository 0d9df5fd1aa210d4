"""Messages on ``pipelines`` and ``pipeline-events``."""

from __future__ import annotations

from typing import Literal

from retrofill.domain.pipeline import PipelineDefinition
from retrofill.messages.base import Message


class PipelineApplied(Message):
    """The whole definition of a pipeline; later ones replace it for later backfills."""

    type: Literal["PipelineApplied"] = "PipelineApplied"
    pipeline: PipelineDefinition


class PipelineAccepted(Message):
    """The definition is in force."""

    type: Literal["PipelineAccepted"] = "PipelineAccepted"
    pipeline: str
    changed: bool


class PipelineRejected(Message):
    """The definition cannot be used."""

    type: Literal["PipelineRejected"] = "PipelineRejected"
    pipeline: str
    message: str


class PipelineRemoved(Message):
    """A null value removed the pipeline: new backfills of it are refused, the present ones end."""

    type: Literal["PipelineRemoved"] = "PipelineRemoved"
    pipeline: str
