"""Hosts and their seats: which are free, who has them, and whose lease is over.

A shard's owner gives seats to attempts and takes them back. Only the host makes a seat warm,
acknowledges an attempt and launches it. Rows are locked after backfills and pipelines.
A run-starter is one host for each pool that it serves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Integer,
    Interval,
    Text,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    true,
    update,
)

from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.store.giving_way import Rank
from retrofill_core.store.sql import Arrays, none_of, one_of
from retrofill_core.store.tables import attempt, host, seat, seat_wait

# Notifications: of a host, that it has a new attempt; that a seat of a pool (or any) became free or warm.
HOST_CHANNEL = "retrofill_host"
SEAT_CHANNEL = "retrofill_seat"
# What an attempt needs of a seat: a warm driver, a spark-submit, or any process.
POOL, SUBMIT, ANY = "pool", "spark-submit", "any"
# Rows of a dead host are kept this long, for those who ask what became of it.
KEPT = timedelta(minutes=10)
# How long a host's acknowledged attempt may be unknown to it: its claim commits right now.
COMMITS = timedelta(seconds=1)


def _in(name: str) -> ColumnElement[Any]:
    """A moment from now; the parameter is a time span."""
    return func.clock_timestamp() + bindparam(name, type_=Interval)


# what owners do


@dataclass(frozen=True, slots=True)
class Seat:
    """A free seat, locked. ``host_name`` is for people; ``host_id`` is the incarnation."""

    host_id: int
    no: int
    host_name: str
    warm: bool
    submits: bool
    pool: str = DEFAULT_POOL

    def serves(self, executor: str) -> bool:
        """Whether such an attempt may have it."""
        return (executor != POOL and self.submits) or (executor != SUBMIT and self.warm)


@dataclass(frozen=True, slots=True)
class Offer:
    """Free seats of one pool, the nearest first.

    ``total``: how many usable seats all its live hosts have, taken ones included; ``None`` if none
    is free. ``rivals``: of each other shard, the first backfills that wait for a seat that hosts
    may offer: for a warm driver, and for spark-submit.
    """

    seats: list[Seat]
    total: int | None = None
    rivals: tuple[Rank, ...] = ()


_ALIVE = host.c.lease_until > func.clock_timestamp()
_any_seat, _any_host = seat.alias("any_seat"), host.alias("any_host")
_TOTAL = (
    select(func.count())
    .select_from(_any_seat.join(_any_host, _any_host.c.id == _any_seat.c.host_id))
    .where(
        _any_host.c.lease_until > func.clock_timestamp(),
        _any_host.c.pool == bindparam("of_pool"),
        or_(
            *(_any_seat.c.warm, _any_seat.c.attempt_id.is_not(None)),
            and_(_any_host.c.submits, bindparam("for_submit", type_=Boolean)),
        ),
    )
    .scalar_subquery()
)
_RIVALS = (
    select(func.array_agg(seat_wait.c.live).label("live"), func.array_agg(seat_wait.c.since).label("since"))
    .where(
        seat_wait.c.shard != bindparam("shard"),
        seat_wait.c.pool == bindparam("of_pool"),
        seat_wait.c.until > func.clock_timestamp(),
        or_(
            seat_wait.c.submits.is_(False),
            exists().where(
                _any_host.c.pool == bindparam("of_pool"),
                _any_host.c.submits,
                _any_host.c.lease_until > func.clock_timestamp(),
            ),
        ),
    )
    .lateral("rivals")
)
_FREE = (
    select(
        *(seat.c.host_id, seat.c.no, host.c.name, seat.c.warm, host.c.submits, host.c.pool),
        *(_TOTAL.label("total"), _RIVALS.c.live, _RIVALS.c.since),
    )
    .select_from(seat.join(host, host.c.id == seat.c.host_id).join(_RIVALS, true()))
    .where(
        seat.c.attempt_id.is_(None),
        host.c.pool == bindparam("of_pool"),
        or_(
            and_(seat.c.warm, bindparam("for_warm", type_=Boolean)),
            and_(host.c.submits, bindparam("for_submit", type_=Boolean)),
        ),
        _ALIVE,
    )
    # Its own host's first. Then by number: a host with more free seats has lower ones among them.
    .order_by(none_of(host.c.id, "own"), seat.c.no, host.c.id)
    .limit(bindparam("most", type_=Integer))
    .with_for_update(of=seat, skip_locked=True)
)


def lock_free(
    conn: Connection, own: Collection[int], shard: int, pool: str, executors: Collection[str], most: int
) -> Offer:
    """At most ``most`` free seats of a pool for these executors, locked; those of hosts ``own`` come first.

    Seats that another claim is about to take are skipped.
    """
    given = {
        "own": sorted(own),
        "shard": shard,
        "most": most,
        "of_pool": pool,
        "for_warm": any(each != SUBMIT for each in executors),
        "for_submit": any(each != POOL for each in executors),
    }
    rows = conn.execute(_FREE, given).all()
    if not rows:
        return Offer([])
    rivals = zip(rows[0].live or (), rows[0].since or (), strict=True)
    return Offer([Seat(*row[:6]) for row in rows], rows[0].total, tuple(Rank(*each) for each in rivals))


_FREED = Arrays("given", id=BigInteger, warm=Boolean)
_FREE_AGAIN = (
    update(seat)
    .where(seat.c.attempt_id == _FREED.c.id)
    .values(attempt_id=null(), acknowledged_at=null(), warm=_FREED.c.warm)
)
_UNACKNOWLEDGED = (
    select(seat.c.attempt_id)
    .where(one_of(seat.c.attempt_id, "ids"), seat.c.acknowledged_at.is_(None))
    .with_for_update()
)


# A host renews its own lease when a fifth of it has passed, so one that has used half of it is silent.
_SILENT = (
    select(attempt.c.id)
    .select_from(attempt.outerjoin(host, host.c.id == attempt.c.host_id))
    .where(
        one_of(attempt.c.id, "ids"),
        or_(
            host.c.id.is_(None),
            host.c.lease_until
            < func.clock_timestamp() + attempt.c.lease_seconds * literal(timedelta(seconds=0.5), Interval),
        ),
    )
)


def silent(conn: Connection, attempts: Collection[int]) -> set[int]:
    """Those whose hosts are silent, too: whatever it was, it was not one of their runs alone."""
    return set(conn.execute(_SILENT, {"ids": sorted(attempts)}).scalars())


def free(conn: Connection, attempts: Mapping[int, bool]) -> None:
    """Free the seats of these attempts; with ``True``, their driver process stays."""
    if attempts:
        conn.execute(_FREE_AGAIN, _FREED.values(id=attempts, warm=attempts.values()))


def unacknowledged(conn: Connection, attempts: Collection[int]) -> set[int]:
    """Those that no host has taken over. Until the transaction ends, none will."""
    return set(conn.execute(_UNACKNOWLEDGED, {"ids": sorted(attempts)}).scalars())


# what hosts do

_DEAD = host.c.lease_until < _in("kept")
_DELETE_SEATS = delete(seat).where(seat.c.attempt_id.is_(None), exists().where(host.c.id == seat.c.host_id, _DEAD))
_DELETE_HOSTS = delete(host).where(_DEAD, ~exists().where(seat.c.host_id == host.c.id))
_REGISTER = (
    insert(host)
    .values(
        name=bindparam("called"),
        pool=bindparam("of_pool"),
        lease_until=_in("seconds"),
        submits=bindparam("may_submit"),
        note=bindparam("why"),
        logs=bindparam("url", type_=Text),
    )
    .returning(host.c.id)
)
_NUMBERS = Arrays("given", host_id=BigInteger, no=Integer, warm=Boolean)
_MAKE_SEATS = insert(seat).from_select(["host_id", "no", "warm"], select(*_NUMBERS.c))
_RENEW = (
    update(host)
    .where(host.c.id == bindparam("own"))
    .values(
        lease_until=_in("seconds"),
        submits=bindparam("may_submit", type_=Boolean),
        note=bindparam("why", type_=Text),
        # Those of the last driver, if none is ready now.
        python=func.coalesce(bindparam("python_version", type_=Text), host.c.python),
        spark=func.coalesce(bindparam("spark_version", type_=Text), host.c.spark),
    )
)
_SEATS = (
    select(
        *(seat.c.host_id, seat.c.no, seat.c.warm, seat.c.attempt_id, attempt.c.backfill_id, seat.c.acknowledged_at),
        (seat.c.acknowledged_at < _in("commits")).label("overdue"),
    )
    .select_from(seat.outerjoin(attempt, attempt.c.id == seat.c.attempt_id))
    .where(one_of(seat.c.host_id, "own"))
    .order_by(seat.c.host_id, seat.c.no)
)
_MINE = and_(seat.c.host_id == bindparam("own"), seat.c.attempt_id == bindparam("attempt"))
_ACKNOWLEDGE = (
    update(seat)
    .where(
        _MINE,
        seat.c.acknowledged_at.is_(None),
        # One whose lease is over is about to be given to somebody else.
        exists().where(attempt.c.id == bindparam("attempt"), attempt.c.lease_until > func.clock_timestamp()),
    )
    .values(acknowledged_at=func.clock_timestamp())
)
_SET_WARM = (
    update(seat)
    .where(seat.c.host_id == bindparam("own"), seat.c.no == bindparam("number"), seat.c.attempt_id.is_(None))
    .values(warm=bindparam("is_warm", type_=Boolean))
)
_WITHDRAW = delete(seat).where(seat.c.host_id == bindparam("own"), seat.c.attempt_id.is_(None))


def register(
    conn: Connection,
    name: str,
    seats: int,
    seconds: float,
    *,
    submits: bool,
    note: str | None,
    logs: str | None = None,
    pool: str = DEFAULT_POOL,
) -> int:
    """A new incarnation with so many cold seats of a pool; returns its id. Deletes hosts long dead.

    ``logs``: URL of the logs of its attempts.
    """
    conn.execute(_DELETE_SEATS, {"kept": -KEPT})
    conn.execute(_DELETE_HOSTS, {"kept": -KEPT})
    given = {"called": name, "seconds": timedelta(seconds=seconds), "may_submit": submits, "why": note, "url": logs}
    given["of_pool"] = pool
    id = int(conn.execute(_REGISTER, given).scalar_one())
    make_seats(conn, id, range(1, seats + 1))
    return id


def make_seats(conn: Connection, id: int, numbers: Collection[int]) -> None:
    """New cold seats of a host, which has none with these numbers."""
    count = len(numbers)
    conn.execute(_MAKE_SEATS, _NUMBERS.values(host_id=[id] * count, no=numbers, warm=[False] * count))


def renew(
    conn: Connection,
    id: int,
    seconds: float,
    *,
    submits: bool,
    note: str | None,
    python: str | None = None,
    spark: str | None = None,
) -> bool:
    """Extend the host's lease; false if it was so long dead that its rows are gone.

    If one of its seats was taken then, its row and that seat are still there, and the free seats are not.

    ``python`` and ``spark``: the versions of its drivers, if known now.
    """
    given = {"own": id, "seconds": timedelta(seconds=seconds), "may_submit": submits, "why": note}
    given |= {"python_version": python, "spark_version": spark}
    return conn.execute(_RENEW, given).rowcount == 1


@dataclass(frozen=True, slots=True)
class Mine:
    """A seat as its host sees it, with ``backfill_id`` of its attempt, if it has one.

    ``overdue``: the attempt was acknowledged so long ago that the host must know it.
    """

    host_id: int
    no: int
    warm: bool
    attempt_id: int | None
    backfill_id: str | None
    acknowledged_at: datetime | None
    overdue: bool | None


def seats_of(conn: Connection, ids: Collection[int]) -> list[Mine]:
    """The seats of hosts by host and number."""
    return [Mine(*row) for row in conn.execute(_SEATS, {"own": sorted(ids), "commits": -COMMITS})]


def acknowledge(conn: Connection, id: int, attempt_id: int) -> bool:
    """Take an attempt over. False if it was taken back, or was acknowledged before."""
    return conn.execute(_ACKNOWLEDGE, {"own": id, "attempt": attempt_id}).rowcount == 1


def set_warm(conn: Connection, id: int, no: int, *, warm: bool) -> None:
    """Make a free seat warm or cold. One that was taken meanwhile stays as it is."""
    conn.execute(_SET_WARM, {"own": id, "number": no, "is_warm": warm})


def withdraw(conn: Connection, id: int) -> None:
    """Delete the free seats of a host."""
    conn.execute(_WITHDRAW, {"own": id})
