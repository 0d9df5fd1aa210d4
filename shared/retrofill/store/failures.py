"""Whether a run failed since its backfill was last resumed, as a condition on rows of ``backfill``: the only place that says so.

Counts are compared, not clocks: a failure that was read before the resume may be committed after it, with an older moment.
"""

from __future__ import annotations

from sqlalchemy import Connection, exists, func, select
from sqlalchemy.sql.elements import ColumnElement

from retrofill.domain.run import RunState
from retrofill.store.tables import backfill, run


def failed_since_resume() -> ColumnElement[bool]:
    """More runs of the backfill have failed than when it was last resumed (ever, where it never was)."""
    failed = select(run.c.id).where(run.c.backfill_id == backfill.c.id, run.c.state == RunState.FAILED)
    return exists(failed.offset(backfill.c.failed_before))


def count_failed(conn: Connection, backfill_id: str) -> int:
    """How many runs of a backfill have failed: what a resume accepts."""
    return conn.execute(
        select(func.count()).select_from(run).where(run.c.backfill_id == backfill_id, run.c.state == RunState.FAILED)
    ).scalar_one()
