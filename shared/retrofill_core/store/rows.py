"""Rows of runs, attempts and backfills, as every module outside the store sees them.

A query selects exactly the columns of the type that it returns, so a row becomes one of them by position.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, FromClause
from sqlalchemy.dialects.postgresql import Range

from retrofill.states import LIVE, AttemptMode

T = TypeVar("T")


def columns_of(kind: type[Any], table: FromClause) -> list[ColumnElement[Any]]:
    """The columns of ``table`` that a ``kind`` is built from, in the order of its fields."""
    return [table.c[each.name] for each in fields(kind)]


def present(value: T | None) -> T:
    """A nullable column that is set in the state that the row is in."""
    assert value is not None
    return value


@dataclass(frozen=True, slots=True)
class Run:
    """A run. What the columns mean is said in ``tables.runs``."""

    id: int
    backfill_id: str
    pipeline_no: int
    interval_start: datetime
    interval_end: datetime
    position: int
    state: str
    attempt: int
    attempt_id: int | None
    range_limit: int | None
    lost_at: datetime | None
    lost_attempts: int
    losses: dict[str, Any]
    started_at: datetime | None
    times_out_at: datetime | None
    error: dict[str, Any] | None
    outputs: dict[str, Any] | None
    accepted_attempt: int | None
    publication: int
    review: int
    restores: int | None

    @property
    def folders(self) -> tuple[str, ...]:
        """The output that its accepted attempt staged."""
        return tuple(self.outputs["folders"]) if self.outputs else ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt. What the columns mean is said in ``tables.attempts``."""

    id: int
    backfill_id: str
    pipeline_no: int
    mode: str
    runs: int
    state: str
    suspect_server: str | None
    lease_until: datetime | None
    lease_seconds: float
    cancel_requested: bool
    release_requested: bool
    code: dict[str, Any]
    began_at: datetime | None

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def cancelled(self) -> bool:
        """Whether it ends with its whole backfill. One that only publishes does not."""
        return self.cancel_requested and self.mode != AttemptMode.PUBLISH


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill without its definition, which never changes and may be large.

    What the columns mean is said in ``tables.backfills``.
    """

    id: str
    pipeline_no: int
    pipeline: str
    state: str
    covers: Range[datetime]
    runs: int
    max_active_runs: int
    batch_size: int | None
    on_run_failure: str
    conf: dict[str, Any]
    code_follows: bool
    requested_at: datetime
    resumed_at: datetime | None
    failed_before: int
    review: bool
    staged_at: datetime | None
    approvals: int
    forced: bool
    undoes: str | None
    traceparent: str | None
    cancel_cause: str | None
    budget_failed_runs: int | None
    budget_core_hours: float | None
    budget_until: datetime | None

    @property
    def approved(self) -> int | None:
        """How often it was approved. ``None``: it is not reviewed."""
        return self.approvals if self.review else None

    @property
    def publishes_below(self) -> int:
        """Its accepted runs that wait for a lower review than this are published."""
        return 1 if self.approved is None else self.approved


@dataclass(frozen=True, slots=True)
class Planned(Backfill):
    """A backfill with the definition that it was planned with."""

    definition: dict[str, Any]
