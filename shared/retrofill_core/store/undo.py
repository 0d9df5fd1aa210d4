"""Queries for an undo: the backfill, and the state of each of its intervals since."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, func, select, update

from retrofill_core.domain.planning import Intervals, SkipReason
from retrofill_core.domain.run import RunState
from retrofill_core.domain.undo import is_replaced
from retrofill_core.store.arrays import one_of
from retrofill_core.store.overlaps import counts, overlaps
from retrofill_core.store.states import in_state
from retrofill_core.store.tables import backfill, run


@dataclass(frozen=True, slots=True)
class Undone:
    """A backfill that is to be undone. ``undoes``: the one that it undoes itself."""

    id: str
    pipeline_no: int
    pipeline: str
    state: str
    max_active_runs: int
    definition: dict[str, Any]
    undoes: str | None


_FIND = select(
    backfill.c.id,
    backfill.c.pipeline_no,
    backfill.c.pipeline,
    backfill.c.state,
    backfill.c.max_active_runs,
    backfill.c.definition,
    backfill.c.undoes,
).where(one_of(backfill.c.id, "ids"))


def find(conn: Connection, ids: Collection[str]) -> dict[str, Undone]:
    """Backfills by id, without unknown ones."""
    return {row[0]: Undone(*row) for row in conn.execute(_FIND, {"ids": sorted(ids)})}


_RUNS = (
    select(
        run.c.id,
        run.c.interval_start,
        run.c.interval_end,
        and_(in_state(run, RunState.SUCCEEDED), run.c.published.is_not(None)).label("published"),
        run.c.undone_by.is_not(None).label("undone"),
    )
    .where(run.c.superseded_by.is_(None))
    .order_by(run.c.interval_start)
)
_later = run.alias("later")
# What a run published, and what a later one of an overlapping interval, of any backfill, published
# since. Such runs are never active together, so the later one has the larger id.
_SINCE = (
    select(run.c.id, run.c.published.label("mine"), _later.c.published.label("theirs"))
    .select_from(run.join(_later, overlaps(_later, run.c.pipeline_no, run.c.interval_start, run.c.interval_end)))
    .where(
        _later.c.id > run.c.id,
        in_state(_later, RunState.SUCCEEDED),
        counts(_later),
        _later.c.published.is_not(None),
        run.c.superseded_by.is_(None),
        run.c.published.is_not(None),
    )
)


def intervals(
    conn: Connection, id: str, first: datetime | None, last: datetime | None
) -> tuple[Intervals, list[SkipReason | None]]:
    """Those of a backfill with a run that start in the closed range, in their order, and why each is left alone."""
    mine = [run.c.backfill_id == id]
    if first is not None:
        mine.append(run.c.interval_start >= first)
    if last is not None:
        mine.append(run.c.interval_start <= last)
    again = {row.id for row in conn.execute(_SINCE.where(*mine)) if is_replaced(row.mine, row.theirs)}
    starts, ends, reasons = [], [], []
    for row in conn.execute(_RUNS.where(*mine)):
        starts.append(row.interval_start)
        ends.append(row.interval_end)
        reasons.append(_reason(row, again))
    return Intervals(starts, ends), reasons


def _reason(row: Any, again: Collection[int]) -> SkipReason | None:
    if not row.published:
        return SkipReason.NOT_PUBLISHED
    if row.undone:
        return SkipReason.UNDONE
    return SkipReason.PUBLISHED_AGAIN if row.id in again else None


_undoing = run.alias("undoing")
_MARK = (
    update(run)
    .values(undone_by=_undoing.c.id)
    .where(
        one_of(_undoing.c.id, "ids"),
        in_state(_undoing, RunState.SUCCEEDED),
        run.c.id == _undoing.c.restores,
        func.coalesce(run.c.undone_by, 0) < _undoing.c.id,
    )
)


def mark_undone(conn: Connection, run_ids: Collection[int]) -> None:
    """Note on the undone runs that these have succeeded in undoing them."""
    conn.execute(_MARK, {"ids": sorted(run_ids)})
