"""Conditions that find the runs whose intervals overlap others, by an index of the intervals' ranges."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import distinct_on

from retrofill_core.domain.coverage import Finished
from retrofill_core.domain.run import RunState
from retrofill_core.store.sql import in_state
from retrofill_core.store.tables import run


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


def read(conn: Connection, statement: Select[Any], values: dict[str, Any]) -> list[Finished]:
    """What such a statement finds."""
    # With one object for each state: there may be as many rows as a request may have runs.
    return [Finished(id, start, end, RunState(state)) for id, start, end, state in conn.execute(statement, values)]
