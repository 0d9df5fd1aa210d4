"""Hosts, the pools that they serve, and why a running backfill waits for their seats or for others' slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from sqlalchemy import Connection, Text, distinct, func, literal_column, select, text

from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.contract.runs import SPARK_LOST
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.run import RunState
from retrofill_core.store import places
from retrofill_core.store.pipelines import limit
from retrofill_core.store.rows import Backfill
from retrofill_core.store.tables import attempt, backfill, host, pipeline, seat
from retrofill_tools.client.pipelines import StoredDefinition

# A server that was lost in so many of the last minutes does not stay. All attempts on it notice one loss within two.
MINUTES, TOO_MANY = 10, 3


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
    """``slots``: how many drivers its hosts can have; ``free``: those that could take an attempt now.

    ``spark_lost``: in how many of the last ``of_minutes`` attempts were lost with their whole Spark server.
    """

    pool: str
    hosts: int
    slots: int
    free: int
    python: list[str]
    spark: list[str]
    pipelines: int
    spark_lost: int = 0
    of_minutes: int = MINUTES


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


def spark_lost(conn: Connection) -> dict[str, int]:
    """By pool: in how many of the last ``MINUTES`` attempts were lost with their whole Spark server, if any."""
    pool = func.coalesce(backfill.c.definition.op("->>", return_type=Text())("pool"), DEFAULT_POOL)
    found = (
        select(pool, func.count(distinct(func.date_trunc("minute", attempt.c.ended_at))))
        .join(backfill, backfill.c.id == attempt.c.backfill_id)
        .where(
            # As the index has it.
            attempt.c.pipeline_no.in_(select(pipeline.c.no)),
            attempt.c.ended_at > func.clock_timestamp() - text(f"interval '{MINUTES} minutes'"),
            attempt.c.mode != literal_column("'publish'"),
            attempt.c.error.op("->>", return_type=Text())("type") == SPARK_LOST,
        )
        .group_by(pool)
    )
    return {row[0]: row[1] for row in conn.execute(found)}


def why_spark_fails(conn: Connection, pool: str) -> str | None:
    """That the Spark server of a pool does not stay, if it does not."""
    times = spark_lost(conn).get(pool, 0)
    if times < TOO_MANY:
        return None
    return (
        f"the Spark server of the pool {pool} keeps dying: attempts were lost with it in {times} of the last {MINUTES} "
        "minutes; its own log says why"
    )


def find_pools(conn: Connection, hosts: Iterable[Host]) -> list[Pool]:
    """Each pool that one of the live hosts serves or a pipeline uses, by name."""
    return pools_of(hosts, pools_of_pipelines(conn), spark_lost(conn))


def pools_of(
    hosts: Iterable[Host], pipelines: Mapping[str, int], lost: Mapping[str, int] = MappingProxyType({})
) -> list[Pool]:
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
                spark_lost=lost.get(pool, 0),
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


# At most so many of the backfills that others wait for are named.
NAMED = 3


def waits_for(conn: Connection, of: Backfill, definition: StoredDefinition, by_state: Mapping[str, int]) -> str | None:
    """What it writes, the slots of its pipeline, or the seats of its pool, if others have all of them."""
    if of.state != BackfillState.RUNNING or not by_state.get(RunState.QUEUED):
        return None
    if (writer := _writer(conn, of, definition)) is not None:
        return writer
    pool, slots, seats = definition.pool, Counter[str](), Counter[str]()
    live = (
        select(attempt.c.backfill_id, attempt.c.pipeline_no, host.c.pool, func.count())
        .select_from(attempt.outerjoin(seat, seat.c.attempt_id == attempt.c.id).outerjoin(host))
        .where(attempt.c.slot.is_not(None))
        .group_by(attempt.c.backfill_id, attempt.c.pipeline_no, host.c.pool)
    )
    for id, no, where, number in conn.execute(live):
        slots[id] += number if no == of.pipeline_no else 0
        seats[id] += number if where == pool else 0
    if slots[of.id]:
        return None
    allowed = limit(conn, of.pipeline_no)
    if slots.total() >= allowed:
        return f"waits for a slot: {slots.total()} of {allowed} slots of pipeline {of.pipeline} are used by {_names(slots)}"
    (there,) = pools_of(serving(find_hosts(conn), pool), {pool: 0})
    if seats.total() and seats.total() >= there.slots:
        return f"waits for a seat: {seats.total()} of {there.slots} seats of pool {pool} are used by {_names(seats)}"
    return None


def _writer(conn: Connection, of: Backfill, definition: StoredDefinition) -> str | None:
    """The backfill whose attempt writes what this one writes, too: they take turns."""
    names = () if of.undoes is not None else definition.unstaged
    held = places.held(conn, names) if names else []
    if not held or any(each.backfill_id == of.id for each in held):
        return None
    first = held[0]
    return f"waits to write {first.name}, which backfill {first.backfill_id} writes: they take turns"


def _names(users: Counter[str]) -> str:
    """Those with most first."""
    most = [f"{id} ({number})" for id, number in users.most_common(NAMED) if number]
    more = sum(number > 0 for number in users.values()) - len(most)
    return f"{'backfills' if len(most) > 1 else 'backfill'} {', '.join(most)}{f' and {more:,} more' if more else ''}"
