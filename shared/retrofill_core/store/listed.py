"""Callbacks that a pipeline lists: which failures join them, until they are closed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, Text, bindparam, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import JSONB

from retrofill_core.store.rows import columns_of
from retrofill_core.store.sql import Arrays
from retrofill_core.store.tables import callback, callback_run, run

_c = callback.c
_NEXT_IDS = text("SELECT nextval(pg_get_serial_sequence('retrofill.deadline', 'id')) FROM generate_series(1, :n)")
_RUNS = Arrays("given", run_id=BigInteger, place=Integer, callback_id=BigInteger)
_INSERT_RUNS = insert(callback_run).from_select(["run_id", "place", "callback_id"], select(*_RUNS.c))
_PLACES = Arrays("wanted", backfill_id=Text, place=Integer)
OF_PLACES = select(_c.deadline_id, _c.backfill_id, _c.place).join_from(
    callback, _PLACES.table, (_c.backfill_id == _PLACES.c.backfill_id) & (_c.place == _PLACES.c.place)
)
_COLLECTING = (
    OF_PLACES.where(_c.collects).order_by(_c.deadline_id).with_for_update(read=True, skip_locked=True, of=callback)
)


def next_ids(conn: Connection, count: int) -> list[int]:
    """Unused ids of deadlines and callbacks, which share a sequence."""
    return list(conn.execute(_NEXT_IDS, {"n": count}).scalars())


def collecting(conn: Connection, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Callbacks that failures may join, by backfill and place, share-locked.

    They are not called before this transaction ends. One that is being claimed is skipped: nothing
    waits, and the next failure opens another.
    """
    if not places:
        return {}
    backfills, of_list = zip(*places, strict=True)
    rows = conn.execute(_COLLECTING, _PLACES.values(backfill_id=backfills, place=of_list))
    return {(row.backfill_id, row.place): row.deadline_id for row in rows}


def add_runs(conn: Connection, rows: Iterable[tuple[int, int, int]]) -> None:
    """Add failed runs (run, place, callback). Raises ``IntegrityError`` if a place has the run."""
    given = list(rows)
    if given:
        runs, places, callbacks = zip(*given, strict=True)
        conn.execute(_INSERT_RUNS, _RUNS.values(run_id=runs, place=places, callback_id=callbacks))


_MINE = callback_run.c.callback_id == bindparam("callback")


@dataclass(frozen=True, slots=True)
class ListedFailure:
    """A failed run that a callback is about."""

    id: int
    interval_start: datetime
    interval_end: datetime
    attempt: int
    lost_attempts: int
    finished_at: datetime
    error: Mapping[str, Any] | None


_FAILED = (
    select(*columns_of(ListedFailure, run))
    .join_from(callback_run, run, run.c.id == callback_run.c.run_id)
    .where(_MINE, run.c.superseded_by.is_(None))
    .order_by(run.c.finished_at, run.c.id)
    .limit(bindparam("limit", type_=Integer))
)
_COUNT = (
    select(func.count())
    .select_from(callback_run)
    .join(run, run.c.id == callback_run.c.run_id)
    .where(_MINE, run.c.superseded_by.is_(None))
)
_CLOSE = (
    update(callback)
    .where(_c.deadline_id == bindparam("callback"))
    .values(event=bindparam("new_event", type_=JSONB), kwargs=bindparam("new_kwargs", type_=JSONB), collects=False)
)


def failed_runs(conn: Connection, callback_id: int, limit: int) -> list[ListedFailure]:
    """The first failed runs that a callback is about, in the order of their failures, but for those retried since."""
    return [ListedFailure(*row) for row in conn.execute(_FAILED, {"callback": callback_id, "limit": limit})]


def count_failed_runs(conn: Connection, callback_id: int) -> int:
    """Number of failed runs that a callback is about, but for those retried since."""
    return conn.execute(_COUNT, {"callback": callback_id}).scalar_one()


def close(conn: Connection, callback_id: int, event: dict[str, Any], kwargs: dict[str, Any]) -> None:
    """Store what a locked callback is called with: no failure can join it any more."""
    conn.execute(_CLOSE, {"callback": callback_id, "new_event": event, "new_kwargs": kwargs})
