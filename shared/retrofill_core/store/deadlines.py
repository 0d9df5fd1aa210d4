"""Deadline rows: which are due, which to decide, how they ended, and the facts that they are armed for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    null,
    or_,
    select,
    tuple_,
    update,
)

from retrofill_core.domain.callback import shown
from retrofill_core.domain.deadline import MACHINE, DeadlineState, Scope
from retrofill_core.domain.run import GOING, RunState
from retrofill_core.store.sql import Arrays, constant, in_state, none_of, one_of
from retrofill_core.store.tables import Moment, backfill, deadline, deadline_digest, run, task_run
from retrofill_core.store.transition import Values, transition

BATCH = 500
_d = deadline.c
_ARMED = and_(_d.shard == bindparam("shard"), in_state(deadline, DeadlineState.ARMED))
# Missed deadlines that have not recovered.
_LATE = and_(in_state(deadline, DeadlineState.MISSED), _d.recovered_at.is_(None))
# A subquery is computed once, so it can bound an index scan.
_ONCE = select(func.clock_timestamp()).scalar_subquery()


# reading, with their runs or backfills


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline, and how its run is; its backfill if it has no run."""

    id: int
    shard: int
    alert: str
    pipeline: str
    backfill_id: str
    run_id: int | None
    task: str | None
    reference: str
    interval_seconds: float | None
    due_at: datetime
    fire_on_failure: bool
    callback: str | None
    callback_kind: str
    callback_options: Mapping[str, Any]
    kwargs: Mapping[str, Any]
    digest_seconds: float | None
    digest_id: int | None
    decided_at: datetime | None
    recovered_at: datetime | None
    interval_start: datetime | None
    interval_end: datetime | None
    run_state: str
    run_attempt: int
    ended_at: datetime | None
    staged_at: datetime | None
    superseded: bool

    @property
    def label(self) -> str | None:
        """What events call its callback."""
        return None if self.callback is None else shown(self.callback_kind, self.callback)

    @property
    def scope(self) -> Scope:
        """What must be done by the deadline."""
        if self.run_id is None:
            return Scope.BACKFILL
        return Scope.RUN if self.task is None else Scope.TASK


_DEADLINE = [_d[field.name] for field in fields(Deadline) if field.name in _d]


def _of_runs() -> Select[Any]:
    return select(
        *_DEADLINE,
        run.c.interval_start,
        run.c.interval_end,
        run.c.state.label("run_state"),
        run.c.attempt.label("run_attempt"),
        run.c.finished_at.label("ended_at"),
        run.c.staged_at,
        run.c.superseded_by.is_not(None).label("superseded"),
    ).join_from(deadline, run, run.c.id == _d.run_id)


def _of_backfills() -> Select[Any]:
    return (
        select(
            *_DEADLINE,
            null().cast(Moment).label("interval_start"),
            null().cast(Moment).label("interval_end"),
            backfill.c.state.label("run_state"),
            literal(0, Integer).label("run_attempt"),
            backfill.c.ended_at,
            backfill.c.staged_at,
            literal(False, Boolean).label("superseded"),
        )
        .join_from(deadline, backfill, backfill.c.id == _d.backfill_id)
        .where(_d.run_id.is_(None))
    )


def _locking(which: ColumnElement[bool]) -> tuple[Select[Any], ...]:
    return tuple(
        rows.where(which)
        .order_by(_d.due_at, _d.id)
        .limit(bindparam("limit", type_=Integer))
        .with_for_update(key_share=True, skip_locked=True, of=locked)
        for rows, locked in ((_of_backfills(), backfill), (_of_runs(), run))
    )


_LOCK_DUE = _locking(and_(_ARMED, _d.due_at <= _ONCE, none_of(_d.id, "excluding")))
_LOCK_NAMED = _locking(and_(_ARMED, one_of(_d.id, "ids")))


def lock_due(conn: Connection, shard: int, excluding: Collection[int] = (), limit: int = BATCH) -> list[Deadline]:
    """The first due deadlines except ``excluding``, each with its run or backfill, which is locked.

    Locked ones are skipped without counting towards ``limit``: a transaction that cancels thousands
    of runs does not delay other deadlines. Nothing waits here, so no lock order can deadlock.
    """
    return _rows(conn, _LOCK_DUE, {"shard": shard, "excluding": sorted(excluding), "limit": limit})


def lock_named(conn: Connection, shard: int, ids: Collection[int]) -> list[Deadline]:
    """The shard's armed deadlines among ``ids``, their runs or backfills locked.

    Locked ones are skipped.
    """
    return _rows(conn, _LOCK_NAMED, {"shard": shard, "ids": list(ids), "limit": len(ids)})


def _rows(conn: Connection, statements: Iterable[Select[Any]], parameters: Mapping[str, Any]) -> list[Deadline]:
    # Postgres rereads a row it locks, so the runs are as they are under the lock.
    return [Deadline(*row) for statement in statements for row in conn.execute(statement, parameters)]


_ARMED_AMONG = select(_d.id).where(_ARMED, one_of(_d.id, "ids")).order_by(_d.id)


def armed(conn: Connection, shard: int, ids: Collection[int]) -> list[int]:
    """The shard's armed deadlines among ``ids``, locked or not."""
    return list(conn.execute(_ARMED_AMONG, {"shard": shard, "ids": list(ids)}).scalars())


@dataclass(frozen=True, slots=True)
class ScanPosition:
    """Position of a scan of a shard's armed deadlines, in the order they are due."""

    due_at: datetime
    id: int


START = ScanPosition(datetime.min.replace(tzinfo=UTC) + timedelta(days=366), 0)
_AFTER = tuple_(bindparam("due_at", type_=Moment), bindparam("id", type_=BigInteger))
_WINDOW = (
    select(_d.id, _d.due_at, _d.run_id, _d.backfill_id, _d.fire_on_failure)
    .where(_ARMED, tuple_(_d.due_at, _d.id) > _AFTER)
    .order_by(_d.due_at, _d.id)
    .limit(bindparam("limit", type_=Integer))
)
_RUN_END = case((run.c.superseded_by.is_not(None), constant("superseded")), else_=run.c.state)
# What is held for a review counts as ended since then.
_ENDED_RUNS = select(run.c.id, _RUN_END.label("state")).where(
    one_of(run.c.id, "ids"), or_(run.c.finished_at.is_not(None), run.c.staged_at.is_not(None))
)
_ENDED_BACKFILLS = select(backfill.c.id, backfill.c.state).where(
    one_of(backfill.c.id, "ids"), or_(backfill.c.ended_at.is_not(None), backfill.c.staged_at.is_not(None))
)


def left_armed(
    conn: Connection, shard: int, after: ScanPosition, limit: int = BATCH
) -> tuple[list[int], ScanPosition | None]:
    """Of the next ``limit`` armed deadlines, those about what has ended, and where to continue.

    Those that wait for their moment to fire on a failure are excluded. The position is ``None`` at
    the end.
    """
    place = {"shard": shard, "due_at": after.due_at, "id": after.id, "limit": limit}
    window = conn.execute(_WINDOW, place).all()
    ended: dict[int | str, str] = {}
    for statement, keys in (
        (_ENDED_RUNS, {row.run_id for row in window if row.run_id is not None}),
        (_ENDED_BACKFILLS, {row.backfill_id for row in window if row.run_id is None}),
    ):
        if keys:
            ended.update((row.id, row.state) for row in conn.execute(statement, {"ids": sorted(keys)}))
    states = ((row, ended.get(row.backfill_id if row.run_id is None else row.run_id)) for row in window)
    waits = {str(RunState.FAILED), str(RunState.CANCELLED)}
    left = [row.id for row, state in states if state and not (row.fire_on_failure and state in waits)]
    return left, ScanPosition(window[-1].due_at, window[-1].id) if len(window) == limit else None


_LATE_AMONG = and_(_d.shard == bindparam("shard"), one_of(_d.id, "ids"), _LATE)
_LATE_ROWS = (_of_runs().where(_LATE_AMONG), _of_backfills().where(_LATE_AMONG))


def late(conn: Connection, shard: int, ids: Collection[int]) -> list[Deadline]:
    """The missed deadlines among ``ids`` that have not recovered.

    An end is final, so no lock is needed.
    """
    return _rows(conn, _LATE_ROWS, {"shard": shard, "ids": list(ids)})


_OPENER = _of_runs().where(_d.id == bindparam("digest"))
_OTHERS = (
    _of_runs()
    .where(_d.digest_id == bindparam("digest"), _d.id != bindparam("digest"))
    .order_by(_d.decided_at, _d.due_at, _d.id)
    .limit(bindparam("limit", type_=Integer))
)
_COUNT = select(func.count()).select_from(deadline).where(_d.digest_id == bindparam("digest"))


def of_digest(conn: Connection, digest_id: int, limit: int) -> list[Deadline]:
    """At most ``limit`` deadlines of a digest: its opener, then others in the order missed."""
    return _rows(conn, (_OPENER, _OTHERS), {"digest": digest_id, "limit": limit - 1})


def count_of_digest(conn: Connection, digest_id: int) -> int:
    """Number of deadlines in a digest."""
    return conn.execute(_COUNT, {"digest": digest_id}).scalar_one()


def _earliest(column: ColumnElement[Any], *which: ColumnElement[bool]) -> ColumnElement[Any]:
    return select(column).where(*which).order_by(column).limit(1).scalar_subquery()


_g = deadline_digest.c
_NEXT_MOMENT = select(
    func.least(
        _earliest(_d.due_at, _ARMED, none_of(_d.id, "excluding")),
        _earliest(_g.closes_at, _g.shard == bindparam("shard"), _g.closed_at.is_(None), none_of(_g.id, "excluding")),
        type_=Moment,
    ),
    func.clock_timestamp(),
)


def next_moment(conn: Connection, shard: int, excluding: Collection[int] = ()) -> tuple[datetime | None, datetime]:
    """When the shard's next deadline is due or digest closes, and the database's time.

    Both without the ids ``excluding``.
    """
    due_at, now = conn.execute(_NEXT_MOMENT, {"shard": shard, "excluding": sorted(excluding)}).one()
    return due_at, now


def count_waiting(conn: Connection) -> dict[str, float]:
    """Armed deadlines of all shards, and how many of them are due."""
    due = func.count().filter(_d.due_at <= _ONCE)
    waiting = select(func.count(), due).where(in_state(deadline, DeadlineState.ARMED))
    armed, overdue = conn.execute(waiting).one()
    return {"armed": armed, "due": overdue}


# to be resolved when something ends


def _open(which: ColumnElement[bool]) -> Select[int]:
    """Deadlines that an end may decide or recover."""
    return select(_d.id).where(which, or_(in_state(deadline, DeadlineState.ARMED), _LATE)).order_by(_d.id)


_TASKS = Arrays("given", run_id=BigInteger, task=Text)
_OPEN_OF_RUNS = _open(one_of(_d.run_id, "runs"))
_OPEN_OF_TASKS = _open(and_(_d.run_id == _TASKS.c.run_id, _d.task == _TASKS.c.task))
_OPEN_OF_BACKFILL = _open(and_(_d.backfill_id == bindparam("backfill"), _d.run_id.is_(None)))


def open_of_runs(conn: Connection, run_ids: Collection[int]) -> list[int]:
    """Deadlines of ended runs and of their tasks that may be decided or recovered."""
    return list(conn.execute(_OPEN_OF_RUNS, {"runs": list(run_ids)}).scalars())


def open_of_tasks(conn: Connection, pairs: Iterable[tuple[int, str]]) -> list[int]:
    """The same for (run id, task) pairs."""
    chosen = sorted(pairs)
    given = _TASKS.values(run_id=(id for id, _ in chosen), task=(task for _, task in chosen))
    return list(conn.execute(_OPEN_OF_TASKS, given).scalars())


def open_of_backfill(conn: Connection, backfill_id: str) -> list[int]:
    """The same for the deadlines of a whole backfill."""
    return list(conn.execute(_OPEN_OF_BACKFILL, {"backfill": backfill_id}).scalars())


# writing


def end(conn: Connection, to: DeadlineState, rows: Sequence[Values], decided_at: datetime) -> set[int]:
    """Move armed deadlines (``id`` and columns to set) to ``to``; returns the ids that landed."""
    values: dict[str, Any] = {"decided_at": decided_at}
    return {id for id, *_ in transition(conn, MACHINE, deadline, to, rows, values=values)}


_RECOVERED = Arrays("given", id=BigInteger, at=Moment)
_RECOVER = update(deadline).where(_d.id == _RECOVERED.c.id, _LATE).values(recovered_at=_RECOVERED.c.at).returning(_d.id)


def recover(conn: Connection, moments: Mapping[int, datetime]) -> set[int]:
    """Record when missed deadlines recovered; returns the ids that had not recovered before."""
    if not moments:
        return set()
    return set(conn.execute(_RECOVER, _RECOVERED.values(id=moments, at=moments.values())).scalars())


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """State of one task in one attempt of a run."""

    attempt: int
    state: str
    finished_at: datetime | None


# By run and task; a deadline without one has none.
TaskEnds = Mapping[tuple[int | None, str | None], Sequence[TaskEnd]]
_t = task_run.c
_ENDS = select(_t.run_id, _t.task, _t.attempt, _t.state, _t.finished_at).where(
    _t.run_id == _TASKS.c.run_id, _t.task == _TASKS.c.task
)


def task_ends(conn: Connection, pairs: Collection[tuple[int, str]]) -> TaskEnds:
    """Attempts of tasks. The caller holds the runs' locks."""
    chosen = sorted(pairs)
    given = _TASKS.values(run_id=(id for id, _ in chosen), task=(task for _, task in chosen))
    found: dict[tuple[int | None, str | None], list[TaskEnd]] = {}
    for row in conn.execute(_ENDS, given):
        found.setdefault((row.run_id, row.task), []).append(TaskEnd(row.attempt, row.state, row.finished_at))
    return found


@dataclass(frozen=True, slots=True)
class BackfillFacts:
    """What ``DeadlineMissed`` reports of the backfill."""

    runs: int
    runs_done: int
    timezone: str


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    mine = run.c.backfill_id == backfill.c.id
    return select(func.count()).select_from(run).where(mine, condition).scalar_subquery()


_FACTS = select(
    backfill.c.id,
    backfill.c.runs,
    (_count(in_state(run, RunState.QUEUED)) + _count(in_state(run, *GOING))).label("unfinished"),
    backfill.c.definition["timezone"].astext.label("timezone"),
).where(one_of(backfill.c.id, "ids"))


def backfill_facts(conn: Connection, ids: Collection[str]) -> dict[str, BackfillFacts]:
    """Facts by backfill id. Unfinished runs are counted in two small partial indexes."""
    rows = conn.execute(_FACTS, {"ids": list(ids)})
    return {row.id: BackfillFacts(row.runs, row.runs - row.unfinished, row.timezone) for row in rows}
