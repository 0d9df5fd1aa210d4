"""Digest rows: windows that collect the misses of one alert, whichever shards see them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, RowMapping, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert

from retrofill.store.clock import database_now
from retrofill.store.tables import deadline_digest as digest

_c = digest.c


@dataclass(frozen=True)
class Kind:
    """What the misses of one digest share; ``target`` identifies callback and window length."""

    pipeline: str
    alert: str
    target: str
    seconds: float


def join(conn: Connection, kind: Kind, lead: int, shard: int) -> int:
    """Id of the open digest of a kind, share-locked: it cannot close before this transaction ends.

    If none is open, the deadline ``lead`` of ``shard`` opens one. Closing waits for transactions
    that joined; a join during the close waits and opens the next digest. No miss falls between two
    windows.
    """
    same = {"pipeline": kind.pipeline, "alert": kind.alert, "target": kind.target}
    mine = and_(*(_c[name] == value for name, value in same.items()), _c.closed_at.is_(None))
    while True:
        found = conn.execute(select(_c.id).where(mine).with_for_update(read=True)).scalar()
        if found is None:
            # Read after waiting for the last digest to close: windows do not overlap.
            opens = database_now(conn)
            times = {"opened_at": opens, "closes_at": opens + timedelta(seconds=kind.seconds)}
            found = conn.execute(
                insert(digest)
                .values({**same, **times, "id": lead, "shard": shard})
                .on_conflict_do_nothing(
                    index_elements=[_c.pipeline, _c.alert, _c.target], index_where=_c.closed_at.is_(None)
                )
                .returning(_c.id)
            ).scalar()
        if found is not None:
            return int(found)


def lock_due(conn: Connection, shard: int) -> Sequence[RowMapping]:
    """The shard's digests that are due to close, locked.

    Those being joined right now are skipped.
    """
    over = select(func.clock_timestamp()).scalar_subquery()
    return (
        conn.execute(
            select(digest)
            .where(_c.shard == shard, _c.closed_at.is_(None), _c.closes_at <= over)
            .order_by(_c.id)
            .with_for_update(skip_locked=True)
        )
        .mappings()
        .all()
    )


def close(conn: Connection, id: int, now: datetime) -> None:
    """Close a digest at ``now``: no miss can join it."""
    conn.execute(update(digest).where(_c.id == id).values(closed_at=now))


def hold_open(conn: Connection, ids: Collection[int]) -> set[int]:
    """The open digests among ``ids``, share-locked: they stay open until this transaction ends."""
    if not ids:
        return set()
    rows = conn.execute(
        select(_c.id, _c.closed_at).where(_c.id == func.any(sorted(ids))).order_by(_c.id).with_for_update(read=True)
    )
    return {row.id for row in rows if row.closed_at is None}
