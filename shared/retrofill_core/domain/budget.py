"""The budget of a backfill: what it may use before it pauses. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from pydantic import AwareDatetime, Field, field_validator

from retrofill_core.domain.data import Data
from retrofill_core.domain.deadline import FIRST, LAST


class Budget(Data):
    """Limits of a backfill, which pauses when one of them is reached. They count from its request."""

    failed_runs: int | None = Field(None, ge=1, le=10_000_000, description="Runs that failed permanently")
    core_hours: float | None = Field(
        None, ge=0.001, le=1e9, description="Hours of executor cores, as far as Spark tells them"
    )
    until: AwareDatetime | None = Field(None, description="A moment: runs may start until a minute after it")

    @field_validator("until")
    @classmethod
    def _of_all_calendars(cls, until: datetime | None) -> datetime | None:
        """The last day of the year 9999 may be one of the next year in UTC, which Python cannot read from Postgres."""
        return None if until is None else min(max(until, FIRST), LAST)

    @classmethod
    def of(cls, failed_runs: int | None, core_hours: float | None, until: datetime | None) -> Self | None:
        """The budget with these limits, if there is any."""
        budget = cls(failed_runs=failed_runs, core_hours=core_hours, until=until)
        return None if budget == cls() else budget


@dataclass(frozen=True)
class Spent:
    """What a backfill used by ``now``. ``core_seconds``: 0 if Spark tells none."""

    failed_runs: int
    core_seconds: float
    now: datetime


def used_up(budget: Budget, spent: Spent) -> str | None:
    """Which limit is reached, for people. ``None``: no one."""
    if budget.failed_runs is not None and spent.failed_runs >= budget.failed_runs:
        return f"{spent.failed_runs:,} runs failed, of at most {budget.failed_runs:,} (failed_runs)"
    hours = spent.core_seconds / 3600
    if budget.core_hours is not None and hours >= budget.core_hours:
        return f"{hours:,.2f} core-hours were used, of at most {budget.core_hours:g} (core_hours)"
    if budget.until is not None and spent.now >= budget.until:
        return f"it is past {budget.until.astimezone(UTC):%Y-%m-%dT%H:%M:%S%z} (until)"
    return None
