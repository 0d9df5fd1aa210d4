"""Conditions on runs: which failed, defined only here, and which overlap others, by an index of the intervals' ranges.

A failed run that was retried is superseded and does not count.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    bindparam,
    exists,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import distinct_on

from retrofill_core.domain.run import Finished, RunState
from retrofill_core.store.sql import in_state
from retrofill_core.store.tables import backfill, run

# By another name, for statements that read other runs as well.
_failed = run.alias("failed_run")


def has_failed(runs: FromClause) -> ColumnElement[bool]:
    """The run failed, and was not retried."""
    return and_(in_state(runs, RunState.FAILED), runs.c.superseded_by.is_(None))


def failed_since_resume(of: FromClause = backfill) -> ColumnElement[bool]:
    """A condition on a backfill: more of its runs have failed than at the last resume, if any.

    It compares counts, not times: a failure may be committed after the resume with an earlier time.
    """
    failed = select(_failed.c.id).where(_failed.c.backfill_id == of.c.id, has_failed(_failed))
    return exists(failed.offset(of.c.failed_before))


_COUNT = select(func.count()).select_from(run).where(run.c.backfill_id == bindparam("backfill"), has_failed(run))


def count_failed(conn: Connection, backfill_id: str) -> int:
    """Number of failed runs, which a resume or change stores as accepted."""
    return conn.execute(_COUNT, {"backfill": backfill_id}).scalar_one()


def counts(of: FromClause) -> ColumnElement[bool]:
    """Whether a run counts for its interval: not if it was undone or undoes another, as if neither had been."""
    return and_(of.c.restores.is_(None), of.c.undone_by.is_(None))


def overlaps(of: FromClause, pipeline_no: Any, first: Any, last: Any) -> ColumnElement[bool]:
    """Whether a run is one of the pipeline's that overlap ``[first, last)``: as in ``run_span_idx``."""
    ours, theirs = _as_range(of.c.pipeline_no), _as_range(pipeline_no)
    return ours.bool_op("&&")(theirs) & _span(of.c.interval_start, of.c.interval_end).bool_op("&&")(_span(first, last))


def _as_range(number: Any) -> ColumnElement[Any]:
    """The number as a range, which the index can have beside another."""
    value = literal(number, BigInteger) if isinstance(number, int) else number
    return func.int8range(value, value, literal_column("'[]'"))


def _span(first: Any, last: Any) -> ColumnElement[Any]:
    return func.tstzrange(first, last)


def finished() -> Select[Any]:
    """The columns of ``Finished``: of each interval the latest run that succeeded or failed and counts."""
    return (
        select(run.c.id, run.c.interval_start, run.c.interval_end, run.c.state)
        .where(in_state(run, RunState.FAILED, RunState.SUCCEEDED), run.c.superseded_by.is_(None), counts(run))
        .ext(distinct_on(run.c.interval_start, run.c.interval_end))
        .order_by(run.c.interval_start, run.c.interval_end, run.c.id.desc())
    )


def read_finished(conn: Connection, statement: Select[Any], values: dict[str, Any]) -> list[Finished]:
    """The rows of a statement that selects ``finished()``."""
    # With one object for each state: there may be as many rows as a request may have runs.
    return [Finished(id, start, end, RunState(state)) for id, start, end, state in conn.execute(statement, values)]
