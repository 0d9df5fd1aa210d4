"""Retries of failed runs: a new row takes the place of each, and the old one is superseded.

Of an ended backfill, its intervals that were not done are requested again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    and_,
    bindparam,
    case,
    insert,
    select,
    text,
    update,
)

from retrofill_core.domain.coverage import covers, latest
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.domain.planning import Intervals
from retrofill_core.domain.run import RunState
from retrofill_core.store import conditions
from retrofill_core.store.conditions import has_failed
from retrofill_core.store.sql import Arrays, constant, in_state, one_of
from retrofill_core.store.tables import Moment, deadline, run


@dataclass(frozen=True, slots=True)
class RetriableRun:
    """A failed run."""

    id: int
    position: int
    interval_start: datetime


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that replaces another."""

    id: int
    replaces: int
    position: int
    interval_start: datetime


_FAILED = (
    select(run.c.id, run.c.position, run.c.interval_start)
    .where(run.c.backfill_id == bindparam("backfill"), has_failed(run), run.c.position > bindparam("after"))
    .order_by(run.c.position)
    .limit(bindparam("most", type_=Integer))
)
_FAILED_AMONG = _FAILED.where(one_of(run.c.id, "ids"))


def failed(
    conn: Connection, backfill_id: str, ids: Collection[int] | None, *, after: int, most: int
) -> list[RetriableRun]:
    """The first failed runs of a backfill beyond a position: of ``ids``, if given."""
    given = {"backfill": backfill_id, "after": after, "most": most}
    rows = conn.execute(_FAILED, given) if ids is None else conn.execute(_FAILED_AMONG, {**given, "ids": sorted(ids)})
    return [RetriableRun(*row) for row in rows]


NEXT_IDS = "SELECT nextval(pg_get_serial_sequence('retrofill.run', 'id')) FROM generate_series(1, :n)"
_NEXT_IDS = text(NEXT_IDS)
_PAIRS = Arrays("pairs", old_id=BigInteger, new_id=BigInteger)
_SUPERSEDE = update(run).where(run.c.id == _PAIRS.c.old_id, has_failed(run)).values(superseded_by=_PAIRS.c.new_id)
# The new run does not start while a session of an earlier attempt may still be busy. So it has the attempt of the run that
# it replaces.
_SAME = ("backfill_id", "pipeline_no", "interval_start", "interval_end", "position", "attempt_id", "restores")
# An undo has the outputs of what it restores from the start.
_OUTPUTS = case((run.c.restores.is_not(None), run.c.outputs))
_INSERT = insert(run).from_select(
    ["id", *_SAME, "outputs", "state", "queued_at", "review"],
    select(
        _PAIRS.c.new_id,
        *(run.c[name] for name in _SAME),
        _OUTPUTS,
        constant(RunState.QUEUED),
        bindparam("new_queued_at", type_=Moment),
        bindparam("new_review", type_=Integer),
    )
    .select_from(_PAIRS.table.join(run, run.c.id == _PAIRS.c.old_id))
    .order_by(run.c.position),
)


def replace(conn: Connection, runs: Sequence[RetriableRun], now: datetime, review: int = 0) -> list[NewRun]:
    """Supersede failed runs by new ones, which stage for this ``review``. The caller holds the backfill's lock."""
    ids = conn.execute(_NEXT_IDS, {"n": len(runs)}).scalars().all()
    made = [NewRun(id, old.id, old.position, old.interval_start) for id, old in zip(ids, runs, strict=True)]
    pairs = _PAIRS.values(old_id=(each.replaces for each in made), new_id=(each.id for each in made))
    # First, because each position has one run that is not superseded.
    conn.execute(_SUPERSEDE, pairs)
    conn.execute(_INSERT, {**pairs, "new_queued_at": now, "new_review": review})
    return made


_ARMED = (
    select(deadline.c.id)
    .where(one_of(deadline.c.run_id, "runs"), in_state(deadline, DeadlineState.ARMED))
    .limit(bindparam("most", type_=Integer))
)


def armed_deadlines(conn: Connection, run_ids: Collection[int], most: int) -> list[int]:
    """Armed deadlines of runs and of their tasks, at most ``most``."""
    return list(conn.execute(_ARMED, {"runs": list(run_ids), "most": most}).scalars())


def _left(of: FromClause) -> ColumnElement[bool]:
    """Whether a run of an ended backfill was not done."""
    return and_(
        of.c.backfill_id == bindparam("backfill"),
        in_state(of, RunState.FAILED, RunState.CANCELLED),
        of.c.superseded_by.is_(None),
    )


_mine = run.alias("mine")
_NOT_DONE = select(_mine.c.interval_start, _mine.c.interval_end).where(_left(_mine)).order_by(_mine.c.interval_start)
# What other backfills have done in these intervals since.
_SINCE = (
    conditions.finished()
    .select_from(
        _mine.join(run, conditions.overlaps(run, _mine.c.pipeline_no, _mine.c.interval_start, _mine.c.interval_end))
    )
    .where(_left(_mine), run.c.id > _mine.c.id, run.c.backfill_id != _mine.c.backfill_id)
)


def not_done(conn: Connection, backfill_id: str) -> Intervals:
    """The intervals of an ended backfill whose runs failed or were cancelled.

    Without those that later runs of other backfills have done.
    """
    given = {"backfill": backfill_id}
    left = [tuple(row) for row in conn.execute(_NOT_DONE, given)]
    since = latest(conditions.read_finished(conn, _SINCE, given)) if left else []
    starts, ends = [start for start, _ in left], [end for _, end in left]
    done = [cover.succeeded for cover in covers(starts, ends, since)]
    return Intervals(*([at for at, over in zip(each, done, strict=True) if not over] for each in (starts, ends)))
