"""Cancels and retries of runs: what a command names, what waits to be cancelled, and the rows that take the place of failed ones.

A retried run is superseded by a new row. Of an ended backfill, the intervals that were not done are requested again.
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
    FromClause,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    exists,
    insert,
    select,
    text,
    update,
)

from retrofill_core.domain.backfill import ACTIVE
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.domain.planning import Intervals
from retrofill_core.domain.run import RunState, covers, latest
from retrofill_core.store import conditions
from retrofill_core.store.conditions import has_failed
from retrofill_core.store.rows import Run
from retrofill_core.store.runs import COLUMNS
from retrofill_core.store.sql import Arrays, constant, in_state, one_of
from retrofill_core.store.tables import Moment, attempt, backfill, deadline, run, run_cancel

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


def request_cancels(conn: Connection, backfill_id: str, run_ids: Collection[int], ce_id: str | None) -> None:
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


def queued_to_cancel(conn: Connection, backfill_ids: Collection[str], most: int) -> list[Run]:
    """Queued runs to be cancelled, at most ``most``."""
    given = {"backfills": sorted(backfill_ids), "most": most}
    return [Run(*row) for row in conn.execute(_QUEUED, given)]


def mark_release_requested(conn: Connection, backfill_ids: Collection[str]) -> list[int]:
    """Request the end of live attempts with unaccepted runs to be cancelled; returns the ids of
    those newly requested.
    """
    return list(conn.execute(_RELEASE, {"backfills": sorted(backfill_ids)}).scalars())


def cancelled_among(conn: Connection, backfill_ids: Collection[str], run_ids: Collection[int]) -> set[int]:
    """The runs whose cancel was requested, of these runs of these backfills."""
    return set(conn.execute(_AMONG, {"backfills": sorted(backfill_ids), "runs": sorted(run_ids)}).scalars())


def backfills_with_cancels(conn: Connection, shard: int) -> list[str]:
    """Active backfills of a shard in which users cancelled runs."""
    return list(conn.execute(_OF_SHARD, {"shard": shard}).scalars())


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


def failed_runs(
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
_INSERT_RUNS = insert(run).from_select(
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


def replace_failed(conn: Connection, runs: Sequence[RetriableRun], now: datetime, review: int = 0) -> list[NewRun]:
    """Supersede failed runs by new ones, which stage for this ``review``. The caller holds the backfill's lock."""
    ids = conn.execute(_NEXT_IDS, {"n": len(runs)}).scalars().all()
    made = [NewRun(id, old.id, old.position, old.interval_start) for id, old in zip(ids, runs, strict=True)]
    pairs = _PAIRS.values(old_id=(each.replaces for each in made), new_id=(each.id for each in made))
    # First, because each position has one run that is not superseded.
    conn.execute(_SUPERSEDE, pairs)
    conn.execute(_INSERT_RUNS, {**pairs, "new_queued_at": now, "new_review": review})
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
