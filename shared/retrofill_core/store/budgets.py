"""Budgets of backfills and what they used of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select

from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.budget import Budget, Spent, used_up
from retrofill_core.store.clock import database_now
from retrofill_core.store.failures import count_failed, has_failed
from retrofill_core.store.progress import Announced, costs
from retrofill_core.store.rows import Backfill
from retrofill_core.store.states import in_state
from retrofill_core.store.tables import backfill, run


def of_row(row: Backfill | Announced) -> Budget | None:
    """The budget of a backfill, if any."""
    return Budget.of(row.budget_failed_runs, row.budget_core_hours, row.budget_until)


def columns(budget: Budget | None) -> dict[str, Any]:
    """A budget as columns of the backfill's row."""
    return {f"budget_{name}": getattr(budget, name, None) for name in Budget.model_fields}


def spent(conn: Connection, id: str) -> Spent:
    """What the backfill used until now."""
    used = costs(conn, [id]).get(id, {}).get("core_seconds")
    return Spent(count_failed(conn, id), used or 0.0, database_now(conn))


def exceeded(conn: Connection, id: str, budget: Budget | None) -> str | None:
    """Which limit of ``budget`` the backfill has reached, for people. ``None``: no one."""
    return None if budget is None else used_up(budget, spent(conn, id))


_failed = run.alias("failed_of_budget")


def may_be_used_up() -> ColumnElement[bool]:
    """A condition on ``backfill``: its failed runs or the time used up its budget.

    Core-hours are compared less often, with its progress: their sum reads all attempts.
    """
    failed = select(_failed.c.id).where(_failed.c.backfill_id == backfill.c.id, has_failed(_failed))
    return and_(
        in_state(backfill, BackfillState.RUNNING),
        or_(
            backfill.c.budget_until <= func.clock_timestamp(),
            and_(
                backfill.c.budget_failed_runs.is_not(None),
                exists(failed.offset(backfill.c.budget_failed_runs - 1)),
            ),
        ),
    )
