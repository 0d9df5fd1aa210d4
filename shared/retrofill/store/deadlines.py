"""Deadlines as rows: which are due, what of their runs decides on them, and the callbacks that follow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, literal, select

from retrofill.domain.callback import CallbackState
from retrofill.domain.deadline import MACHINE, DeadlineState
from retrofill.store.tables import callback, deadline, run
from retrofill.store.transition import Values, transition

BATCH = 500


def lock_due(conn: Connection, shard: int, limit: int = BATCH) -> Sequence[Values]:
    """The first armed deadlines whose moment came, each with its run, which is locked.

    Runs that somebody else has locked are skipped, and so many more are taken: thousands of runs that are cancelled
    in one transaction do not keep the deadlines of others waiting. Nothing waits here, so no order of locks can
    make a deadlock.
    """
    return _lock(
        conn,
        # As a subquery it is computed once, so that the index ends where the future begins.
        (deadline.c.shard == shard) & (deadline.c.due_at <= select(func.clock_timestamp()).scalar_subquery()),
        limit,
    )


def lock_named(conn: Connection, shard: int, ids: Collection[int]) -> Sequence[Values]:
    """Those of ``ids`` that are armed deadlines of the shard and whose runs nobody else has locked."""
    return _lock(conn, (deadline.c.shard == shard) & (deadline.c.id == func.any(list(ids))), len(ids))


def _lock(conn: Connection, which: ColumnElement[bool], limit: int) -> Sequence[Values]:
    d = deadline.c
    # After a wait Postgres reads the locked rows again, so these are the runs as they are under the lock.
    statement = (
        select(
            d.id,
            d.alert,
            d.pipeline,
            d.backfill_id,
            d.run_id,
            d.reference,
            d.due_at,
            d.fire_on_failure,
            d.callback,
            d.kwargs,
            run.c.interval_start,
            run.c.interval_end,
            run.c.state.label("run_state"),
            run.c.attempt.label("run_attempt"),
            run.c.finished_at.label("run_finished_at"),
        )
        .join_from(deadline, run, run.c.id == d.run_id)
        .where(d.state == literal(str(DeadlineState.ARMED), literal_execute=True), which)
        .order_by(d.due_at, d.id)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True, of=run)
    )
    return [row._asdict() for row in conn.execute(statement)]


def earliest(conn: Connection, shard: int) -> tuple[datetime | None, datetime]:
    """The next armed moment of a shard, and the database's time."""
    first = (
        select(deadline.c.due_at)
        .where(
            deadline.c.shard == shard,
            deadline.c.state == literal(str(DeadlineState.ARMED), literal_execute=True),
        )
        .order_by(deadline.c.due_at)
        .limit(1)
        .scalar_subquery()
    )
    due_at, now = conn.execute(select(first, func.clock_timestamp())).one()
    return due_at, now


def end(conn: Connection, to: DeadlineState, rows: Sequence[Values], decided_at: datetime) -> set[int]:
    """Move armed deadlines (``id``, and ``reason`` where it is void) to an end; returns the ids that landed."""
    values: dict[str, Any] = {"decided_at": decided_at}
    return {row["id"] for row in transition(conn, MACHINE, deadline, to, rows, values=values)}


def insert_callbacks(conn: Connection, ids: Collection[int]) -> None:
    """A callback for each of these deadlines that names one; the key refuses a second one."""
    d = deadline.c
    conn.execute(
        insert(callback).from_select(
            ["deadline_id", "shard", "name", "kwargs", "state"],
            select(d.id, d.shard, d.callback, d.kwargs, literal(str(CallbackState.PENDING))).where(
                d.id == func.any(list(ids)), d.callback.is_not(None)
            ),
        )
    )
