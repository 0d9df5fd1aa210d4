"""What planning reads, for the planner and for a dry run alike, and what writes a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, DateTime, Integer, Text, func, insert, literal, select, text
from sqlalchemy.dialects.postgresql import Range, distinct_on

from retrofill.domain.backfill import ACTIVE, BackfillState
from retrofill.domain.planning import Active, History, Plan
from retrofill.domain.run import UNFINISHED, RunState
from retrofill.store.arrays import CHUNK, rows_of
from retrofill.store.tables import backfill, backfill_interval, run

# Tells our advisory locks from others'; the second key is the pipeline's number.
PLANNING_LOCK = 0x52464C


def lock_pipelines(conn: Connection, numbers: Sequence[int]) -> None:
    """One plan at a time for each of these pipelines, until the transaction ends; always in the same order."""
    for no in sorted(set(numbers)):
        conn.execute(text("SELECT pg_advisory_xact_lock(:space, :no)"), {"space": PLANNING_LOCK, "no": no})


def history(conn: Connection, pipeline_no: int, start: datetime, end: datetime) -> History:
    """What there is of the pipeline in [``start``, ``end``): active backfills, and the runs that decide on reprocessing."""
    overlapping = conn.execute(
        select(backfill.c.id, backfill.c.state, backfill.c.covers)
        .where(
            backfill.c.pipeline_no == pipeline_no,
            backfill.c.state.in_(ACTIVE),
            backfill.c.covers.op("&&")(func.tstzrange(start, end)),
        )
        .order_by(backfill.c.requested_at)
    ).all()
    inside = (run.c.pipeline_no == pipeline_no) & (run.c.interval_start >= start) & (run.c.interval_start < end)
    finished = conn.execute(
        select(run.c.interval_start, run.c.state)
        .where(inside, run.c.state.in_([RunState.FAILED, RunState.SUCCEEDED]))
        .ext(distinct_on(run.c.interval_start))
        .order_by(run.c.interval_start, run.c.id.desc())
    ).all()
    unfinished = conn.execute(select(run.c.interval_start).where(inside, run.c.state.in_(UNFINISHED))).scalars()
    return History(
        [Active(row.id, row.state, row.covers.lower, row.covers.upper) for row in overlapping],
        {row.interval_start: row.state for row in finished},
        frozenset(unfinished),
    )


def insert_backfill(conn: Connection, values: dict[str, Any], made: Plan) -> dict[str, Any]:
    """Insert the backfill's row and return it; ``values`` are the columns that the plan does not give."""
    row = {
        **values,
        "state": BackfillState.RUNNING,
        "covers": Range(made.boundaries[0], made.boundaries[-1]),
        "runs": made.runs,
    }
    conn.execute(insert(backfill).values(row))
    return row


def insert_runs(
    conn: Connection, backfill_id: str, pipeline_no: int, made: Plan, now: datetime, *, backwards: bool
) -> None:
    """All runs and intervals of a plan, in statements with array parameters for ``CHUNK`` intervals each.

    So neither this process nor the server holds more than that at once, and between two of them hardly any time passes.
    """
    positions = _positions(made, backwards=backwards)
    for first in range(0, len(made.skipped), CHUNK):
        _insert_chunk(conn, backfill_id, pipeline_no, made, now, slice(first, first + CHUNK), positions)


def _insert_chunk(
    conn: Connection,
    backfill_id: str,
    pipeline_no: int,
    made: Plan,
    now: datetime,
    chunk: slice,
    positions: Iterator[int],
) -> None:
    reasons = made.skipped[chunk]
    given = rows_of(
        "given",
        {
            "interval_start": (DateTime(timezone=True), made.boundaries[chunk][: len(reasons)]),
            "interval_end": (DateTime(timezone=True), made.boundaries[chunk.start + 1 : chunk.stop + 1]),
            "position": (Integer, [next(positions) if reason is None else None for reason in reasons]),
            "reason": (Text, reasons),
        },
    )
    wanted = select(
        literal(backfill_id),
        literal(pipeline_no, BigInteger),
        given.c.interval_start,
        given.c.interval_end,
        given.c.position,
        literal(str(RunState.QUEUED)),
        literal(now, DateTime(timezone=True)),
    ).where(given.c.position.is_not(None))
    names = ["backfill_id", "pipeline_no", "interval_start", "interval_end", "position", "state", "queued_at"]
    inserted = (
        insert(run)
        .from_select(names, wanted.order_by(given.c.position))
        .returning(run.c.id, run.c.interval_start)
        .cte("inserted")
    )
    intervals = select(
        literal(backfill_id), given.c.interval_start, given.c.interval_end, inserted.c.id, given.c.reason
    ).select_from(given.outerjoin(inserted, inserted.c.interval_start == given.c.interval_start))
    conn.execute(
        insert(backfill_interval).from_select(
            ["backfill_id", "interval_start", "interval_end", "run_id", "reason"], intervals
        )
    )


def _positions(made: Plan, *, backwards: bool) -> Iterator[int]:
    """The places of the intervals that get a run in the order of starting."""
    return iter(range(made.runs - 1, -1, -1) if backwards else range(made.runs))
