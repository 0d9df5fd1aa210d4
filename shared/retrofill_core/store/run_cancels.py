"""Cancels of single runs: what a command names, what waits to be cancelled, and for whose sake
attempts end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    and_,
    bindparam,
    exists,
    insert,
    select,
    update,
)

from retrofill_core.domain.backfill import ACTIVE
from retrofill_core.domain.run import RunState
from retrofill_core.store.rows import Run
from retrofill_core.store.runs import COLUMNS
from retrofill_core.store.sql import Arrays, in_state, one_of
from retrofill_core.store.tables import Moment, attempt, backfill, run, run_cancel

# Runs that a cancel still concerns. An accepted one is published.
_OPEN = (RunState.STARTING, RunState.RUNNING)
# Joins a run with the request to cancel it.
ASKED = (run_cancel.c.backfill_id == run.c.backfill_id) & (run_cancel.c.run_id == run.c.id)


@dataclass(frozen=True, slots=True)
class Found:
    """A run that the ``number``-th part of a command names. ``asked``: its cancel is requested."""

    number: int
    run_id: int
    interval_start: datetime
    state: str
    asked: bool


_COLUMNS = (run.c.id, run.c.interval_start, run.c.state, exists().where(ASKED).label("asked"))
_MINE = run.c.backfill_id == bindparam("backfill")
_STARTS = Arrays("starts", number="no", first=Moment, last=Moment)
_WITHIN = and_(
    run.c.interval_start >= _STARTS.c.first,
    run.c.interval_start <= _STARTS.c.last,
    run.c.superseded_by.is_(None),
)
_IDS = Arrays("named", number="no", id=BigInteger)


def _found(given: Arrays, named: ColumnElement[bool]) -> Select[Any]:
    return (
        select(given.c.no, *_COLUMNS)
        .select_from(given.table.join(run, named))
        .where(_MINE)
        .order_by(given.c.no, run.c.interval_start)
        .limit(bindparam("most", type_=Integer))
    )


_BY_START, _BY_ID = _found(_STARTS, _WITHIN), _found(_IDS, run.c.id == _IDS.c.id)


def starting_within(
    conn: Connection, backfill_id: str, windows: Sequence[tuple[datetime, datetime]], most: int
) -> list[Found]:
    """The runs whose intervals start in these closed ``windows``, at most ``most``.

    Without those that were replaced by a retry.
    """
    given = _STARTS.values(first=(first for first, _ in windows), last=(last for _, last in windows))
    return [Found(*row) for row in conn.execute(_BY_START, {**given, "backfill": backfill_id, "most": most})]


def with_ids(conn: Connection, backfill_id: str, ids: Sequence[int], *, after: int) -> list[Found]:
    """The backfill's runs with these ids, numbered ``after`` the other parts."""
    rows = conn.execute(_BY_ID, {**_IDS.values(id=ids), "backfill": backfill_id, "most": len(ids)})
    return [Found(after + row[0], *row[1:]) for row in rows]


_NEW = Arrays("given", run_id=BigInteger)
_INSERT = insert(run_cancel).from_select(
    ["backfill_id", "run_id", "ce_id"],
    select(
        bindparam("new_backfill", type_=run_cancel.c.backfill_id.type),
        _NEW.c.run_id,
        bindparam("new_ce_id", type_=run_cancel.c.ce_id.type),
    ),
)


def insert_all(conn: Connection, backfill_id: str, run_ids: Collection[int], ce_id: str | None) -> None:
    """Record the cancel of these runs. Raises ``IntegrityError`` for one that is recorded."""
    conn.execute(_INSERT, {**_NEW.values(run_id=run_ids), "new_backfill": backfill_id, "new_ce_id": ce_id})


_QUEUED = (
    select(*COLUMNS)
    .join(run_cancel, ASKED)
    .where(one_of(run_cancel.c.backfill_id, "backfills"), in_state(run, RunState.QUEUED))
    .order_by(run.c.backfill_id, run.c.position)
    .limit(bindparam("most", type_=Integer))
)
_TO_END = select(run.c.id).join(run_cancel, ASKED).where(run.c.attempt_id == attempt.c.id, in_state(run, *_OPEN))
_RELEASE = (
    update(attempt)
    .where(
        one_of(attempt.c.backfill_id, "backfills"),
        attempt.c.slot.is_not(None),
        attempt.c.release_requested.is_(False),
        _TO_END.exists(),
    )
    .values(release_requested=True)
    .returning(attempt.c.id)
)
_AMONG = select(run_cancel.c.run_id).where(
    one_of(run_cancel.c.backfill_id, "backfills"), one_of(run_cancel.c.run_id, "runs")
)
_OF_SHARD = select(backfill.c.id).where(
    backfill.c.shard == bindparam("shard"),
    in_state(backfill, *ACTIVE),
    exists().where(run_cancel.c.backfill_id == backfill.c.id),
)


def queued(conn: Connection, backfill_ids: Collection[str], most: int) -> list[Run]:
    """Queued runs to be cancelled, at most ``most``."""
    given = {"backfills": sorted(backfill_ids), "most": most}
    return [Run(*row) for row in conn.execute(_QUEUED, given)]


def mark_release_requested(conn: Connection, backfill_ids: Collection[str]) -> list[int]:
    """Request the end of live attempts with unaccepted runs to be cancelled; returns the ids of
    those newly requested.
    """
    return list(conn.execute(_RELEASE, {"backfills": sorted(backfill_ids)}).scalars())


def among(conn: Connection, backfill_ids: Collection[str], run_ids: Collection[int]) -> set[int]:
    """The runs whose cancel was requested, of these runs of these backfills."""
    return set(conn.execute(_AMONG, {"backfills": sorted(backfill_ids), "runs": sorted(run_ids)}).scalars())


def backfills_with_any(conn: Connection, shard: int) -> list[str]:
    """Active backfills of a shard in which users cancelled runs."""
    return list(conn.execute(_OF_SHARD, {"shard": shard}).scalars())
