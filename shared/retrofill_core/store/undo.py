"""Queries for an undo: the backfill, and the state of each of its intervals since.

What they restore is in the file system and in tables, so whether it is still kept, and still the
last thing published, is checked again when each run publishes (docs/decisions/undo.md).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, and_, func, select, update

from retrofill_core.contract.backfills import BackfillUndoRequested
from retrofill_core.domain.backfill import ACTIVE
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Intervals, Plan, Reason, Rejection, SkipReason, overlap
from retrofill_core.domain.run import RunState
from retrofill_core.domain.schedule import range_bound
from retrofill_core.domain.undo import is_replaced, undo_of
from retrofill_core.store import planning
from retrofill_core.store.conditions import counts, overlaps
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.sql import in_state, one_of
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


def stored_undo(undone: Undone) -> StoredPipeline | None:
    """The pipeline of the undo, by which the backfill was planned. ``None`` if a newer release did that."""
    try:
        definition = PipelineDefinition.model_validate(undone.definition)
    except ValidationError:
        return None
    return StoredPipeline(undone.pipeline_no, undo_of(definition), "")


def plan_undo(
    conn: Connection, body: BackfillUndoRequested, undone: Undone | None, stored: StoredPipeline | None, max_runs: int
) -> Plan | Rejection:
    """Which intervals get a run. ``stored``: see ``stored_undo``."""
    if undone is None:
        return Rejection(
            Reason.UNKNOWN_BACKFILL,
            f"there is no backfill {body.undoes!r} to undo: 'retrofill backfill list' shows all backfills",
        )
    if (refused := _refusal(undone, stored)) is not None:
        return Rejection(Reason.NOT_UNDOABLE, refused)
    assert stored is not None
    zone = stored.definition.timezone
    try:
        first = None if body.from_ is None else range_bound(body.from_, zone, end=False)
        last = None if body.to is None else range_bound(body.to, zone, end=True)
    except ValueError as e:
        return Rejection(Reason.BAD_RANGE, str(e))
    if first is not None and last is not None and first > last:
        return Rejection(Reason.BAD_RANGE, f"'from' {body.from_} is after 'to' {body.to}: swap them")
    return _planned(conn, undone, stored, (first, last), max_runs)


def _refusal(undone: Undone, stored: StoredPipeline | None) -> str | None:
    id = undone.id
    if undone.state in ACTIVE:
        return f"backfill {id} is {undone.state}: wait for its end or cancel it, then undo it"
    if undone.undoes is not None:
        return f"backfill {id} is itself the undo of {undone.undoes}: request its data intervals again instead"
    if stored is None:
        return f"a newer release planned backfill {id}: upgrade the backfill-planner to undo it"
    return None


def _planned(
    conn: Connection,
    undone: Undone,
    stored: StoredPipeline,
    asked: tuple[datetime | None, datetime | None],
    max_runs: int,
) -> Plan | Rejection:
    found, reasons = intervals(conn, undone.id, *asked)
    if not reasons:
        return Rejection(
            Reason.EMPTY_RANGE,
            f"backfill {undone.id} has no run in this range (any more): 'retrofill runs list {undone.id}' shows its runs",
        )
    if len(reasons) > max_runs:
        return Rejection(
            Reason.TOO_MANY_RUNS,
            f"backfill {undone.id} has more than {max_runs:,} runs in this range: undo a part of it (from, to)",
        )
    others = planning.overlapping(conn, undone.pipeline_no, found)
    if others:
        return overlap(stored.definition.name, stored.definition.timezone, others[0])
    made = Plan(found, reasons)
    if made.runs == 0:
        why = ", ".join(f"{count:,} {reason}" for reason, count in made.skipped_counts.items())
        return Rejection(Reason.NOTHING_TO_RUN, f"nothing to undo: of {len(reasons):,} data intervals {why}")
    return made
