"""Queries about places that several pipelines write: whose turn it is where nothing is staged, and who publishes to a table.

A live attempt has the lock of what it writes without staging it. So that is free with the end of the attempt, however that
came, also with the end of the lease of a lost one.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, Connection, Interval, Text, bindparam, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert

from retrofill_core.domain.run import RunState
from retrofill_core.store.conditions import counts
from retrofill_core.store.sql import in_state, one_of
from retrofill_core.store.tables import Moment, attempt, pipeline, run, table_place, write_lock, write_wait

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


# First key of the advisory locks of tables.
_TABLES = 0x524650
_LOCK_TABLE = text("SELECT pg_advisory_xact_lock(:space, :no)")


def lock_tables(conn: Connection, identities: Collection[str]) -> None:
    """Let one transaction at a time decide who may publish to these tables."""
    for no in sorted({zlib.crc32(each.encode()) - 2**31 for each in identities}):
        conn.execute(_LOCK_TABLE, {"space": _TABLES, "no": no})


@dataclass(frozen=True, slots=True)
class Use:
    """A pipeline publishes to a table, of which the columns ``keys`` tell the interval of a row."""

    identity: str
    pipeline_no: int
    keys: str
    pipeline: str


_USES = (
    select(table_place.c.identity, table_place.c.pipeline_no, table_place.c.key_columns, pipeline.c.name)
    .join(pipeline, pipeline.c.no == table_place.c.pipeline_no)
    .where(one_of(table_place.c.identity, "identities"), pipeline.c.removed_at.is_(None))
    .order_by(table_place.c.identity, table_place.c.pipeline_no)
)


def uses(conn: Connection, identities: Collection[str]) -> list[Use]:
    """By pipelines that are not removed."""
    return [Use(*row) for row in conn.execute(_USES, {"identities": sorted(identities)})]


_PUT = insert(table_place).values(
    identity=bindparam("identity"), pipeline_no=bindparam("pipeline_no"), key_columns=bindparam("keys")
)
_PUT = _PUT.on_conflict_do_update(
    index_elements=["identity", "pipeline_no"], set_={"key_columns": _PUT.excluded.key_columns}
)


def put(conn: Connection, identity: str, pipeline_no: int, keys: str) -> None:
    """Note that a pipeline publishes to a table."""
    conn.execute(_PUT, {"identity": identity, "pipeline_no": pipeline_no, "keys": keys})


@dataclass(frozen=True, slots=True)
class Published:
    """A run whose output was accepted and counts: it is not undone, and undoes none."""

    run_id: int
    start: datetime
    end: datetime
    outputs: tuple[str, ...]


_PUBLISHED = (
    select(run.c.id, run.c.interval_start, run.c.interval_end, run.c.outputs)
    .where(
        run.c.pipeline_no == bindparam("pipeline"),
        in_state(run, RunState.PUBLISHING, RunState.STAGED, RunState.SUCCEEDED),
        run.c.outputs.is_not(None),
        counts(run),
        run.c.interval_start < bindparam("end", type_=Moment),
        run.c.interval_end > bindparam("start", type_=Moment),
    )
    .order_by(run.c.id)
)


def published(conn: Connection, pipeline_no: int, start: datetime, end: datetime) -> list[Published]:
    """A pipeline's runs of intervals that overlap this one."""
    given = {"pipeline": pipeline_no, "start": start, "end": end}
    return [Published(*row[:3], tuple(row[3]["folders"])) for row in conn.execute(_PUBLISHED, given)]
