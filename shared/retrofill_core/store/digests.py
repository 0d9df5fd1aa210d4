"""Digest rows: windows that collect the misses of one alert, whichever shards see them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert

from retrofill_core.store.sql import database_now, none_of, one_of
from retrofill_core.store.tables import deadline_digest as digest

_c = digest.c


@dataclass(frozen=True, slots=True)
class DigestKind:
    """What the misses of one digest share; ``target`` identifies callback and window length."""

    pipeline: str
    alert: str
    target: str
    seconds: float


_KIND = (_c.pipeline, _c.alert, _c.target)
_NEW = {
    column.name: bindparam(f"new_{column.name}", type_=column.type)
    for column in (*_KIND, _c.id, _c.shard, _c.opened_at, _c.closes_at)
}
_JOIN = (
    select(_c.id)
    .where(*(column == _NEW[column.name] for column in _KIND), _c.closed_at.is_(None))
    .with_for_update(read=True)
)
_OPEN = (
    insert(digest)
    .values(_NEW)
    .on_conflict_do_nothing(index_elements=_KIND, index_where=_c.closed_at.is_(None))
    .returning(_c.id)
)


def join(conn: Connection, kind: DigestKind, lead: int, shard: int) -> int:
    """Id of the open digest of a kind, share-locked: it cannot close before this transaction ends.

    If none is open, the deadline ``lead`` of ``shard`` opens one. Closing waits for transactions
    that joined; a join during the close waits and opens the next digest. No miss falls between two
    windows.
    """
    same = {"new_pipeline": kind.pipeline, "new_alert": kind.alert, "new_target": kind.target}
    while True:
        found = conn.execute(_JOIN, same).scalar()
        if found is None:
            # Read after waiting for the last digest to close: windows do not overlap.
            opens = database_now(conn)
            times = {"new_opened_at": opens, "new_closes_at": opens + timedelta(seconds=kind.seconds)}
            found = conn.execute(_OPEN, {**same, **times, "new_id": lead, "new_shard": shard}).scalar()
        if found is not None:
            return int(found)


@dataclass(frozen=True, slots=True)
class Window:
    """A digest that is due to close."""

    id: int
    pipeline: str
    alert: str
    opened_at: datetime


_LOCK_DUE = (
    select(_c.id, _c.pipeline, _c.alert, _c.opened_at)
    .where(
        _c.shard == bindparam("shard"),
        _c.closed_at.is_(None),
        _c.closes_at <= select(func.clock_timestamp()).scalar_subquery(),
        none_of(_c.id, "excluding"),
    )
    .order_by(_c.id)
    .with_for_update(skip_locked=True)
)
_CLOSE = update(digest).where(_c.id == bindparam("digest")).values(closed_at=bindparam("now"))
_HOLD = select(_c.id, _c.closed_at).where(one_of(_c.id, "ids")).order_by(_c.id).with_for_update(read=True)


def lock_due(conn: Connection, shard: int, excluding: Collection[int] = ()) -> list[Window]:
    """The shard's digests that are due to close except ``excluding``, locked.

    Those being joined right now are skipped.
    """
    return [Window(*row) for row in conn.execute(_LOCK_DUE, {"shard": shard, "excluding": sorted(excluding)})]


def close(conn: Connection, id: int, now: datetime) -> None:
    """Close a digest at ``now``: no miss can join it."""
    conn.execute(_CLOSE, {"digest": id, "now": now})


def hold_open(conn: Connection, ids: Collection[int]) -> set[int]:
    """The open digests among ``ids``, share-locked: they stay open until this transaction ends."""
    if not ids:
        return set()
    return {row.id for row in conn.execute(_HOLD, {"ids": sorted(ids)}) if row.closed_at is None}
