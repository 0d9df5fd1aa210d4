"""A backfill: one request to process a range of data intervals of one pipeline."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self

from pydantic import AwareDatetime, Field, field_validator

from retrofill.states import machine
from retrofill.wording import plural
from retrofill_core.domain.data import Data
from retrofill_core.domain.deadline import FIRST, LAST


class BackfillState(StrEnum):
    """States of a backfill."""

    RUNNING = "running"
    PAUSED = "paused"
    IN_REVIEW = "in_review"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


S = BackfillState
MACHINE = machine(
    "backfill",
    {
        S.RUNNING: (S.PAUSED, S.IN_REVIEW, S.CANCELLING, S.SUCCEEDED, S.FAILED),
        S.PAUSED: (S.RUNNING, S.IN_REVIEW, S.CANCELLING, S.SUCCEEDED, S.FAILED),
        S.IN_REVIEW: (S.RUNNING, S.CANCELLING),
        S.CANCELLING: (S.CANCELLED, S.FAILED),
        S.CANCELLED: (),
        S.SUCCEEDED: (),
        S.FAILED: (),
    },
)

# Two backfills in these states never share a data interval of a pipeline (the exclusion
# constraint).
ACTIVE = (S.RUNNING, S.PAUSED, S.IN_REVIEW, S.CANCELLING)


class ReprocessBehavior(StrEnum):
    """Which intervals with a finished run are run again."""

    NONE = "none"
    FAILED = "failed"
    COMPLETED = "completed"


class OnRunFailure(StrEnum):
    """What happens to a backfill when one of its runs fails permanently."""

    CONTINUE = "continue"
    PAUSE = "pause"
    CANCEL = "cancel"


class Publish(StrEnum):
    """When the staged output of its runs is published."""

    AT_ONCE = "at_once"
    REVIEW = "review"


class CancelCause(StrEnum):
    """Who requested the cancel: a user's ends ``cancelled``, the other ``failed``."""

    USER = "user"
    RUN_FAILURE = "run_failure"


def end_state(*, cancelling: bool, cancel_cause: str | None, any_not_done: bool) -> BackfillState:
    """The end state of a backfill whose runs have all ended.

    A user's cancel ends ``cancelled``; one by ``on_run_failure`` ends ``failed``. Otherwise, one
    run that failed, or was cancelled by itself, makes it ``failed``.
    """
    if cancelling:
        return S.CANCELLED if cancel_cause == CancelCause.USER else S.FAILED
    return S.FAILED if any_not_done else S.SUCCEEDED


def show_command(id: str) -> str:
    """The command that shows a backfill, as a shell takes it."""
    return shlex.join(["retrofill", "backfill", "show", id])


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
        return f"{plural(spent.failed_runs, 'run')} failed, of at most {budget.failed_runs:,} (failed_runs)"
    hours = spent.core_seconds / 3600
    if budget.core_hours is not None and hours >= budget.core_hours:
        return f"{hours:,.2f} core-hours were used, of at most {budget.core_hours:g} (core_hours)"
    if budget.until is not None and spent.now >= budget.until:
        return f"it is past {budget.until.astimezone(UTC):%Y-%m-%dT%H:%M:%S%z} (until)"
    return None
