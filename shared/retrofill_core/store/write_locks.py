"""Queries for what pipelines write without staging it: who writes it now, and which backfills wait for it.

A live attempt has the lock. So it is free with the end of the attempt, however that came, also with
the end of the lease of a lost one.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, Connection, Interval, Text, bindparam, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert

from retrofill_core.store.sql import one_of
from retrofill_core.store.tables import Moment, attempt, write_lock, write_wait

# First key of the advisory locks.
_SPACE = 0x52465057
_TRY = text("SELECT pg_try_advisory_xact_lock(:space, :no)")


def undecided(conn: Connection, names: Collection[str]) -> set[str]:
    """Those of the names about which another transaction is deciding. This one decides about the others."""
    return {name for name in sorted(names) if not _is_ours(conn, name)}


def _is_ours(conn: Connection, name: str) -> bool:
    # It is not waited for, so no two transactions can wait for each other.
    return bool(conn.execute(_TRY, {"space": _SPACE, "no": zlib.crc32(name.encode()) - 2**31}).scalar_one())


@dataclass(frozen=True, slots=True)
class Held:
    """A lock that a live attempt of a backfill has."""

    name: str
    backfill_id: str


_HELD = (
    select(write_lock.c.name, attempt.c.backfill_id)
    .join(attempt, attempt.c.id == write_lock.c.attempt_id)
    .where(one_of(write_lock.c.name, "names"), attempt.c.slot.is_not(None))
    .order_by(write_lock.c.name)
)


def held(conn: Connection, names: Collection[str]) -> list[Held]:
    """Those of these locks that are not free, by name."""
    return [Held(*row) for row in conn.execute(_HELD, {"names": sorted(names)})]


@dataclass(frozen=True, slots=True)
class Waits:
    """A backfill that waits for a lock. ``since``: when it was last served, or requested."""

    name: str
    backfill_id: str
    since: datetime


_WAITING = select(write_wait.c.name, write_wait.c.backfill_id, write_wait.c.since).where(
    one_of(write_wait.c.name, "names"), write_wait.c.until > func.clock_timestamp()
)


def waiting(conn: Connection, names: Collection[str]) -> list[Waits]:
    return [Waits(*row) for row in conn.execute(_WAITING, {"names": sorted(names)})]


_VALUES = {
    "since": bindparam("waits_since", type_=Moment),
    "until": func.clock_timestamp() + bindparam("seconds", type_=Interval),
}
_WAIT = (
    insert(write_wait)
    .values(name=bindparam("of_name", type_=Text), backfill_id=bindparam("of_backfill", type_=Text), **_VALUES)
    .on_conflict_do_update(index_elements=[write_wait.c.name, write_wait.c.backfill_id], set_=_VALUES)
)


def wait(conn: Connection, names: Collection[str], backfill_id: str, since: datetime, seconds: float) -> None:
    """For so long, backfills that were served later leave these locks to this one."""
    for name in sorted(names):
        given = {"of_name": name, "of_backfill": backfill_id}
        conn.execute(_WAIT, {**given, "waits_since": since, "seconds": timedelta(seconds=seconds)})


_WAIT_NO_MORE = delete(write_wait).where(one_of(write_wait.c.backfill_id, "backfills"))
_FORGET = delete(write_wait).where(write_wait.c.until < func.clock_timestamp() - bindparam("kept", type_=Interval))


def wait_no_more(conn: Connection, backfills: Collection[str]) -> None:
    conn.execute(_WAIT_NO_MORE, {"backfills": sorted(backfills)})
    # Of backfills that ended while they waited.
    conn.execute(_FORGET, {"kept": timedelta(minutes=1)})


_TAKE = insert(write_lock).values(
    name=bindparam("of_name", type_=Text), attempt_id=bindparam("of_attempt", type_=BigInteger)
)
_TAKE = _TAKE.on_conflict_do_update(
    index_elements=[write_lock.c.name], set_={"attempt_id": bindparam("of_attempt", type_=BigInteger)}
)


def take(conn: Connection, names: Collection[str], attempt_id: int) -> None:
    """Give free locks, about which this transaction decides, to an attempt that it starts."""
    for name in sorted(names):
        conn.execute(_TAKE, {"of_name": name, "of_attempt": attempt_id})
