"""Requests to undo an ended backfill: plans the runs that restore what its runs replaced.

What they restore is in the file system and in tables, so whether it is still kept, and still the
last thing published, is checked again when each run publishes (docs/decisions/undo.md).
"""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError
from sqlalchemy import Connection

from retrofill_core.contract.backfills import BackfillUndoRequested
from retrofill_core.domain.backfill import ACTIVE
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Plan, Reason, Rejection, overlap
from retrofill_core.domain.schedule import range_bound
from retrofill_core.domain.undo import undo_of
from retrofill_core.store import planning, undo
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.undo import Undone


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
    intervals, reasons = undo.intervals(conn, undone.id, *asked)
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
    others = planning.overlapping(conn, undone.pipeline_no, intervals)
    if others:
        return overlap(stored.definition.name, others[0])
    made = Plan(intervals, reasons)
    if made.runs == 0:
        why = ", ".join(f"{count:,} {reason}" for reason, count in made.skipped_counts.items())
        return Rejection(Reason.NOTHING_TO_RUN, f"nothing to undo: of {len(reasons):,} data intervals {why}")
    return made
