"""Spark's resource use, in messages. All of it is optional: not every Spark tells."""

from __future__ import annotations

from pydantic import Field

from retrofill_core.contract.base import Facts


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
