"""Shards in which a backfill waits for a seat of a pool: others leave it one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Boolean, Connection, DateTime, Integer, Interval, bindparam, delete, func
from sqlalchemy.dialects.postgresql import insert as upsert

from retrofill_core.store.tables import seat_wait


class SeatKind(NamedTuple):
    """The seats that a backfill can use: of a pool, for spark-submit or with a warm driver."""

    pool: str
    submits: bool


class Rank(NamedTuple):
    """Who gets a free seat: the backfill with the fewest live attempts, then the one that waits longest."""

    live: int
    since: datetime


_WAITS = {
    "live": bindparam("fewest", type_=Integer),
    "since": bindparam("waits_since", type_=DateTime(timezone=True)),
    "until": func.clock_timestamp() + bindparam("seconds", type_=Interval),
}
_SUBMITS = bindparam("by_submit", type_=Boolean)
_WAIT = (
    upsert(seat_wait)
    .values(shard=bindparam("ours"), pool=bindparam("of_pool"), submits=_SUBMITS, **_WAITS)
    .on_conflict_do_update(index_elements=[seat_wait.c.shard, seat_wait.c.pool, seat_wait.c.submits], set_=_WAITS)
)
_WAIT_NO_MORE = delete(seat_wait).where(
    seat_wait.c.shard == bindparam("ours"), seat_wait.c.pool == bindparam("of_pool"), seat_wait.c.submits == _SUBMITS
)


def wait(conn: Connection, shard: int, kind: SeatKind, first: Rank, seconds: float) -> None:
    """For so long, others leave a seat of this kind to this shard's ``first`` backfill that waits for one."""
    given: dict[str, object] = {"ours": shard, "of_pool": kind.pool, "by_submit": kind.submits}
    given |= {"fewest": first.live, "waits_since": first.since, "seconds": timedelta(seconds=seconds)}
    conn.execute(_WAIT, given)


def wait_no_more(conn: Connection, shard: int, kind: SeatKind) -> None:
    conn.execute(_WAIT_NO_MORE, {"ours": shard, "of_pool": kind.pool, "by_submit": kind.submits})
