"""What a claim reads: occupied slots, backfills that could use a free one, and the next runs.

The statements read only live runs and runs about to start, however many backfills wait for a slot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    RowMapping,
    Select,
    Text,
    exists,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import TableValuedAlias

from retrofill.domain.backfill import BackfillState, OnRunFailure
from retrofill.domain.run import RunState
from retrofill.store.arrays import rows_of
from retrofill.store.failures import failed_since_resume
from retrofill.store.tables import backfill, pipeline, run


@dataclass
class Taken:
    """Slots that live runs of one pipeline hold: the pipeline's, and those of their backfills."""

    pipeline_slots: set[int] = field(default_factory=set)
    of_backfills: dict[str, set[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Claimant:
    """A backfill with a queued run that no failure blocks. It may be at its own limit."""

    id: str
    pipeline_no: int
    shard: int
    max_active_runs: int
    requested_at: datetime


def lock_pipelines(conn: Connection, numbers: Collection[int]) -> dict[int, int]:
    """``max_active_runs`` by pipeline number, the rows locked. Locked ones are skipped."""
    rows = conn.execute(
        select(pipeline.c.no, pipeline.c.max_active_runs)
        .where(pipeline.c.no == func.any(sorted(numbers)))
        .order_by(pipeline.c.no)
        .with_for_update(key_share=True, skip_locked=True)
    )
    return {row.no: row.max_active_runs for row in rows}


def taken_slots(conn: Connection, numbers: Collection[int]) -> dict[int, Taken]:
    """Occupied slots by pipeline number. The caller holds the pipelines' locks."""
    rows = conn.execute(
        select(run.c.pipeline_no, run.c.backfill_id, run.c.slot, run.c.pipeline_slot).where(
            run.c.pipeline_no == func.any(sorted(numbers)), run.c.pipeline_slot.is_not(None)
        )
    )
    found = {no: Taken() for no in numbers}
    for row in rows:
        taken = found[row.pipeline_no]
        taken.pipeline_slots.add(row.pipeline_slot)
        taken.of_backfills.setdefault(row.backfill_id, set()).add(row.slot)
    return found


def claimants(
    conn: Connection, shard: int, most: Mapping[int, int], with_live_runs: Collection[str]
) -> dict[str, Claimant]:
    """Backfills that could use a free slot, by id: ``with_live_runs``, and some without live runs.

    Of the latter, each pipeline gets up to ``most`` (by its number) of ``shard``, in the order they
    were requested, and up to twice as many of any shard: enough to compare.
    """
    mine, all_shards = _counts("mine", most), _counts("all_shards", {no: 2 * count for no, count in most.items()})
    waiting = (
        _claimable()
        .where(backfill.c.pipeline_no == mine.c.no, backfill.c.shard == shard, ~_live())
        .order_by(backfill.c.requested_at)
        .limit(mine.c.most)
        .lateral("waiting")
    )
    anywhere = (
        _claimable()
        .where(backfill.c.pipeline_no == all_shards.c.no, ~_live())
        .limit(all_shards.c.most)
        .lateral("anywhere")
    )
    rows = conn.execute(
        union_all(
            select(waiting).select_from(mine).join(waiting, true()),
            select(anywhere).select_from(all_shards).join(anywhere, true()),
            _claimable().where(backfill.c.id == func.any(sorted(with_live_runs))),
        )
    )
    return {row[0]: Claimant(*row) for row in rows}


def _counts(name: str, most: Mapping[int, int]) -> TableValuedAlias:
    return rows_of(name, {"no": (BigInteger, list(most)), "most": (Integer, list(most.values()))})


def _claimable() -> Select[Any]:
    """Running backfills with a queued run that no failure blocks."""
    b = backfill.c
    return select(b.id, b.pipeline_no, b.shard, b.max_active_runs, b.requested_at).where(
        backfill.c.state == literal(str(BackfillState.RUNNING), literal_execute=True),
        exists().where(
            run.c.backfill_id == backfill.c.id,
            run.c.state == literal(str(RunState.QUEUED), literal_execute=True),
        ),
        or_(backfill.c.on_run_failure == OnRunFailure.CONTINUE, ~failed_since_resume()),
    )


def _live() -> ColumnElement[bool]:
    return exists().where(run.c.backfill_id == backfill.c.id, run.c.slot.is_not(None))


def next_queued(conn: Connection, wanted: Mapping[str, int]) -> dict[str, list[RowMapping]]:
    """The next queued runs by backfill, in start order, at most as many as ``wanted`` of each."""
    given = rows_of(
        "wanted", {"backfill_id": (Text, list(wanted)), "count": (Integer, list(wanted.values()))}, number="no"
    )
    next_runs = (
        select(run)
        .where(run.c.backfill_id == given.c.backfill_id, run.c.state == RunState.QUEUED)
        .order_by(run.c.position)
        .limit(given.c.count)
        .lateral("next_run")
    )
    rows: Sequence[RowMapping] = (
        conn.execute(
            select(next_runs).select_from(given).join(next_runs, true()).order_by(given.c.no, next_runs.c.position)
        )
        .mappings()
        .all()
    )
    found: dict[str, list[RowMapping]] = {}
    for row in rows:
        found.setdefault(row["backfill_id"], []).append(row)
    return found
