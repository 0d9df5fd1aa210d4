"""The ``launch`` message, with which a host starts an attempt in a driver."""

from __future__ import annotations

from typing import Any

from pydantic import Field, JsonValue

from retrofill.contract.base import Moment
from retrofill.domain.data import Data
from retrofill.domain.pipeline import PipelineDefinition


class Launch(Data):
    backfill_id: str
    run_id: int
    attempt: int = Field(ge=1)
    pipeline: PipelineDefinition
    interval_start: Moment
    interval_end: Moment
    conf: dict[str, JsonValue] = Field(default_factory=dict)
    trace: str | None = Field(None, description="Trace context of the backfill's plan")
    publication: int = Field(0, ge=0, description="From 1: only publish what the attempt staged")
    outputs: tuple[str, ...] = Field((), description="What the attempt staged, where it is only to be published")
    lease_seconds: float | None = Field(None, gt=0, description="The attempt's lease; without it, that of the settings")

    @property
    def tag(self) -> str:
        """The tag of all Spark jobs of the attempt."""
        return f"retrofill-run-{self.run_id}-{self.attempt}"

    @property
    def about(self) -> dict[str, Any]:
        """The fields that all reports of the attempt share."""
        return {
            "backfill_id": self.backfill_id,
            "run_id": self.run_id,
            "attempt": self.attempt,
            "publication": self.publication,
        }
