"""What planning reads, for the planner and for a dry run alike, and the one statement that writes a plan."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, DateTime, Integer, Text, func, insert, literal, select, text
from sqlalchemy.dialects.postgresql import Range, distinct_on

from retrofill.bus.partitioning import partition_of
from retrofill.domain.backfill import ACTIVE, BackfillState
from retrofill.domain.deadline import Arming
from retrofill.domain.pipeline import DeadlineAlert
from retrofill.domain.planning import Active, History, Plan
from retrofill.domain.run import UNFINISHED, RunState
from retrofill.store.arrays import rows_of
from retrofill.store.tables import backfill, backfill_interval, deadline, run

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


def insert_backfill(conn: Connection, values: dict[str, Any], made: Plan) -> None:
    """The backfill's row; ``values`` are the columns that the plan does not give."""
    conn.execute(
        insert(backfill).values(
            **values,
            state=BackfillState.RUNNING,
            covers=Range(made.boundaries[0], made.boundaries[-1]),
            runs=made.runs,
        )
    )


def insert_runs(
    conn: Connection, backfill_id: str, pipeline_no: int, made: Plan, now: datetime, *, backwards: bool
) -> None:
    """All runs and intervals of a plan, in one statement with array parameters however many they are."""
    given = rows_of(
        "given",
        {
            "interval_start": (DateTime(timezone=True), made.boundaries[:-1]),
            "interval_end": (DateTime(timezone=True), made.boundaries[1:]),
            "position": (Integer, _positions(made, backwards=backwards)),
            "reason": (Text, made.left_out),
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


def insert_deadlines(
    conn: Connection,
    backfill_id: str,
    pipeline: str,
    alert: DeadlineAlert,
    arming: Arming,
    run_ids: Sequence[int],
    partitions: int,
) -> dict[int, int]:
    """One deadline of ``alert`` for each run; returns the first deadline id of each shard."""
    ids = list(
        conn.execute(
            text("SELECT nextval(pg_get_serial_sequence('retrofill.deadline', 'id')) FROM generate_series(1, :n)"),
            {"n": len(run_ids)},
        ).scalars()
    )
    shards = [partition_of(str(each), partitions) for each in ids]
    given = rows_of("given", {"id": (BigInteger, ids), "shard": (Integer, shards), "run_id": (BigInteger, run_ids)})
    same = {
        "alert": alert.name,
        "pipeline": pipeline,
        "backfill_id": backfill_id,
        "reference": str(alert.reference),
        "due_at": arming.due_at,
        "state": str(arming.state),
        "reason": arming.reason,
        "fire_on_failure": alert.fire_on_failure,
        "callback": alert.callback,
        "kwargs": alert.kwargs,
    }
    constants = [literal(value, deadline.c[name].type) for name, value in same.items()]
    decided = func.clock_timestamp() if arming.reason is not None else literal(None, DateTime(timezone=True))
    conn.execute(
        insert(deadline).from_select(
            ["id", "shard", "run_id", *same, "decided_at"],
            select(given.c.id, given.c.shard, given.c.run_id, *constants, decided),
        )
    )
    first: dict[int, int] = {}
    for each, shard in zip(ids, shards, strict=True):
        first.setdefault(shard, each)
    return first


def run_ids(conn: Connection, backfill_id: str) -> list[int]:
    """Ids of a backfill's runs, by position."""
    return list(
        conn.execute(select(run.c.id).where(run.c.backfill_id == backfill_id).order_by(run.c.position)).scalars()
    )


def _positions(made: Plan, *, backwards: bool) -> list[int | None]:
    """The place of each interval in the order of starting; ``None`` where it gets no run."""
    places = iter(range(made.runs - 1, -1, -1) if backwards else range(made.runs))
    return [next(places) if reason is None else None for reason in made.left_out]
