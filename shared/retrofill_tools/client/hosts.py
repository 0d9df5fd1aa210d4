"""Hosts, and the pools that they serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Text, func, select

from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.store.tables import host, pipeline, seat


@dataclass(frozen=True)
class Host:
    """A run-starter as a host of one pool, with the number of its seats.

    ``busy`` seats have an attempt, ``warm`` ones are free, ``cold`` ones wait for a driver.
    """

    id: int
    name: str
    pool: str
    started_at: datetime
    submits: bool
    note: str | None
    python: str | None
    spark: str | None
    alive: bool
    busy: int
    warm: int
    cold: int


@dataclass(frozen=True)
class Pool:
    """``slots``: how many drivers its hosts can have; ``free``: those that could take an attempt now."""

    pool: str
    hosts: int
    slots: int
    free: int
    python: list[str]
    spark: list[str]
    pipelines: int


def find_hosts(conn: Connection) -> list[Host]:
    """Hosts that are alive or still have attempts, one for each pool."""
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
    return [Host(*row) for row in conn.execute(found)]


def serving(hosts: Iterable[Host], pool: str) -> list[Host]:
    """Those that serve the pool now."""
    return [each for each in hosts if each.alive and each.pool == pool]


def pools_of_pipelines(conn: Connection) -> dict[str, int]:
    """How many applied pipelines each pool has."""
    pool = func.coalesce(pipeline.c.definition.op("->>", return_type=Text())("pool"), DEFAULT_POOL)
    return {row[0]: row[1] for row in conn.execute(select(pool, func.count()).group_by(pool))}


def pools_of(hosts: Iterable[Host], pipelines: Mapping[str, int]) -> list[Pool]:
    """Each pool that a live host serves or a pipeline uses, by name."""
    alive = [each for each in hosts if each.alive]
    found = []
    for pool in sorted({each.pool for each in alive} | pipelines.keys()):
        mine = [each for each in alive if each.pool == pool]
        found.append(
            Pool(
                pool=pool,
                hosts=len(mine),
                slots=sum(each.busy + each.warm + each.cold for each in mine),
                free=sum(each.warm for each in mine),
                python=sorted({each.python for each in mine if each.python}),
                spark=sorted({each.spark for each in mine if each.spark}),
                pipelines=pipelines.get(pool, 0),
            )
        )
    return found


def unserved(pool: str) -> str:
    """Why runs of a pool wait that nobody serves, and what to do."""
    return (
        f"no run-starter serves the pool {pool}: start one that does (RETROFILL_POOLS_FILE, RETROFILL_SERVES), or apply "
        "the pipeline with another pool"
    )


def why_unserved(hosts: Iterable[Host], pool: str) -> str | None:
    """Why runs of the pool would wait now, if nobody serves it."""
    return None if serving(hosts, pool) else unserved(pool)
