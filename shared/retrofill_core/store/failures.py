"""Failed runs, and the condition "one failed since the backfill was last resumed", defined only here.

A failed run that was retried is superseded and does not count.

It compares counts, not times: a failure may be committed after the resume with an earlier time.
"""

from __future__ import annotations

from sqlalchemy import Connection, FromClause, and_, bindparam, exists, func, select
from sqlalchemy.sql.elements import ColumnElement

from retrofill_core.domain.run import RunState
from retrofill_core.store.sql import in_state
from retrofill_core.store.tables import backfill, run

# By another name, for statements that read other runs as well.
_failed = run.alias("failed_run")


def has_failed(runs: FromClause) -> ColumnElement[bool]:
    """The run failed, and was not retried."""
    return and_(in_state(runs, RunState.FAILED), runs.c.superseded_by.is_(None))


def failed_since_resume(of: FromClause = backfill) -> ColumnElement[bool]:
    """A condition on a backfill: more of its runs have failed than at the last resume, if any."""
    failed = select(_failed.c.id).where(_failed.c.backfill_id == of.c.id, has_failed(_failed))
    return exists(failed.offset(of.c.failed_before))


_COUNT = select(func.count()).select_from(run).where(run.c.backfill_id == bindparam("backfill"), has_failed(run))


def count_failed(conn: Connection, backfill_id: str) -> int:
    """Number of failed runs, which a resume or change stores as accepted."""
    return conn.execute(_COUNT, {"backfill": backfill_id}).scalar_one()
