"""Shards in which a backfill waits for a seat of a pool: others leave it one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, DateTime, Integer, Interval, bindparam, delete, func
from sqlalchemy.dialects.postgresql import insert as upsert

from retrofill_core.store.tables import seat_wait


class Rank(NamedTuple):
    """Who gets a free seat: the backfill with the fewest live attempts, then the one that waits longest."""

    live: int
    since: datetime


_WAITS = {
    "live": bindparam("fewest", type_=Integer),
    "since": bindparam("waits_since", type_=DateTime(timezone=True)),
    "until": func.clock_timestamp() + bindparam("seconds", type_=Interval),
}
_WAIT = (
    upsert(seat_wait)
    .values(shard=bindparam("ours"), pool=bindparam("of_pool"), **_WAITS)
    .on_conflict_do_update(index_elements=[seat_wait.c.shard, seat_wait.c.pool], set_=_WAITS)
)
_WAIT_NO_MORE = delete(seat_wait).where(
    seat_wait.c.shard == bindparam("ours"), seat_wait.c.pool == bindparam("of_pool")
)


def wait(conn: Connection, shard: int, pool: str, first: Rank, seconds: float) -> None:
    """For so long, others leave a seat of the pool to this shard's ``first`` backfill that waits for one."""
    given = {"ours": shard, "of_pool": pool, "fewest": first.live, "waits_since": first.since}
    conn.execute(_WAIT, given | {"seconds": timedelta(seconds=seconds)})


def wait_no_more(conn: Connection, shard: int, pool: str) -> None:
    conn.execute(_WAIT_NO_MORE, {"ours": shard, "of_pool": pool})
