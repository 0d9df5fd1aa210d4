"""Queries for hosts and the pools that they serve."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, Text, func, select

from retrofill.sdk.names import DEFAULT_POOL
from retrofill.states.attempt import AttemptState
from retrofill_core.store.states import in_state
from retrofill_core.store.tables import attempt, host, pipeline, seat


def hosts(conn: Connection) -> list[RowMapping]:
    """Hosts that are alive or still have attempts, one for each pool, with the number of their seats.

    ``busy`` seats have an attempt, ``warm`` ones are free, ``cold`` ones wait for a driver.
    """
    alive = host.c.lease_until > func.clock_timestamp()
    busy = seat.c.attempt_id.is_not(None)
    found = (
        select(
            *(host.c.id, host.c.name, host.c.pool, host.c.started_at, host.c.submits, host.c.note),
            *(host.c.python, host.c.spark, alive.label("alive")),
            func.count().filter(busy).label("busy"),
            func.count().filter(~busy, seat.c.warm).label("warm"),
            func.count().filter(~busy, ~seat.c.warm).label("cold"),
        )
        .join(seat, seat.c.host_id == host.c.id)
        .group_by(host.c.id)
        .having(alive | (func.count().filter(busy) > 0))
        .order_by(host.c.name, host.c.pool, host.c.id)
    )
    return list(conn.execute(found).mappings())


def serving(conn: Connection, pool: str) -> list[RowMapping]:
    """The hosts that serve the pool now."""
    return [each for each in hosts(conn) if each["alive"] and each["pool"] == pool]


def kept_waiting(conn: Connection, backfill_id: str) -> list[RowMapping]:
    """Attempts of the backfill that have not begun, at hosts that say why drivers do not start."""
    found = (
        select(attempt.c.id, host.c.name, host.c.note)
        .join(seat, seat.c.attempt_id == attempt.c.id)
        .join(host, host.c.id == seat.c.host_id)
        .where(
            attempt.c.backfill_id == backfill_id,
            in_state(attempt, AttemptState.STARTING),
            host.c.note.is_not(None),
            host.c.lease_until > func.clock_timestamp(),
        )
        .order_by(attempt.c.id)
    )
    return list(conn.execute(found).mappings())


def pools_of_pipelines(conn: Connection) -> dict[str, int]:
    """How many applied pipelines each pool has."""
    pool = func.coalesce(pipeline.c.definition.op("->>", return_type=Text())("pool"), DEFAULT_POOL)
    return {row[0]: row[1] for row in conn.execute(select(pool, func.count()).group_by(pool))}
