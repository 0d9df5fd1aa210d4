"""Deadlines as rows: which are due, what decides on them, and what became of them.

A deadline row as read here has the columns of ``_DEADLINE`` and, of the run (or the backfill) that it is about,
``interval_start``, ``interval_end``, ``run_state``, ``run_attempt`` and ``ended_at``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB

from retrofill.domain.callback import CallbackState
from retrofill.domain.deadline import MACHINE, DeadlineState
from retrofill.domain.run import RunState
from retrofill.store.arrays import rows_of
from retrofill.store.tables import Moment, backfill, callback, deadline, deadline_digest, run, task_run
from retrofill.store.transition import Values, transition

BATCH = 500
_d = deadline.c
_DEADLINE = (
    _d.id,
    _d.alert,
    _d.task,
    _d.pipeline,
    _d.backfill_id,
    _d.run_id,
    _d.reference,
    _d.interval_seconds,
    _d.due_at,
    _d.state,
    _d.fire_on_failure,
    _d.callback,
    _d.callback_kind,
    _d.callback_options,
    _d.kwargs,
    _d.digest_seconds,
    _d.digest_id,
    _d.decided_at,
    _d.recovered_at,
)


def _is(state: DeadlineState) -> ColumnElement[bool]:
    """As a constant in the statement, so that a partial index is used whatever the plan."""
    return _d.state == literal(str(state), literal_execute=True)


_ARMED = _is(DeadlineState.ARMED)
# What may still tell something when its run ends.
_OPEN = or_(_ARMED, and_(_is(DeadlineState.MISSED), _d.recovered_at.is_(None)))


_WHOLE = and_(_d.run_id.is_(None), _d.backfill_id == backfill.c.id)


# reading, with what they are about


def _of_runs() -> Select[Any]:
    return select(
        *_DEADLINE,
        run.c.interval_start,
        run.c.interval_end,
        run.c.state.label("run_state"),
        run.c.attempt.label("run_attempt"),
        run.c.finished_at.label("ended_at"),
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
        )
        .join_from(deadline, backfill, backfill.c.id == _d.backfill_id)
        .where(_d.run_id.is_(None))
    )


def lock_due(conn: Connection, shard: int, excluding: Collection[int] = (), limit: int = BATCH) -> Sequence[Values]:
    """The first armed deadlines whose moment came, except ``but``, each with its run or backfill, which is locked.

    What somebody else has locked is skipped, and so many more are taken: thousands of runs that are cancelled in one
    transaction do not keep the deadlines of others waiting. Nothing waits here, so no order of locks can make a
    deadlock.
    """
    # As a subquery it is computed once, so that the index ends where the future begins.
    past = _d.due_at <= select(func.clock_timestamp()).scalar_subquery()
    due = and_(_d.shard == shard, _ARMED, past, *_except(excluding))
    return _lock(conn, due, limit)


def lock_named(conn: Connection, shard: int, ids: Collection[int]) -> Sequence[Values]:
    """Those of ``ids`` that are armed deadlines of the shard and whose runs or backfills nobody else has locked."""
    return _lock(conn, and_(_d.shard == shard, _ARMED, _d.id == func.any(list(ids))), len(ids))


def _lock(conn: Connection, which: ColumnElement[bool], limit: int) -> Sequence[Values]:
    # After a wait Postgres reads the locked rows again, so these are the runs as they are under the lock.
    found: list[Values] = []
    for statement, locked in ((_of_backfills(), backfill), (_of_runs(), run)):
        first = statement.where(which).order_by(_d.due_at, _d.id).limit(limit)
        rows = conn.execute(first.with_for_update(key_share=True, skip_locked=True, of=locked))
        found += [row._asdict() for row in rows]
    return found


def armed(conn: Connection, shard: int, ids: Collection[int]) -> list[int]:
    """Those of ``ids`` that are still armed deadlines of the shard, whoever has what they are about locked."""
    which = and_(_d.shard == shard, _ARMED, _d.id == func.any(list(ids)))
    return list(conn.execute(select(_d.id).where(which).order_by(_d.id)).scalars())


@dataclass(frozen=True)
class Place:
    """Where a walk through the armed deadlines of a shard is, in the order of their moments."""

    due_at: datetime
    id: int


START = Place(datetime.min.replace(tzinfo=UTC) + timedelta(days=366), 0)


def left_armed(conn: Connection, shard: int, after: Place, limit: int = BATCH) -> tuple[list[int], Place | None]:
    """Of the next ``limit`` armed deadlines those about what has ended already, but for those that wait for their moment
    to fire on a failure; and where to go on, ``None`` at the end."""
    place = tuple_(_d.due_at, _d.id) > tuple_(literal(after.due_at, Moment), literal(after.id, BigInteger))
    window = conn.execute(
        select(_d.id, _d.due_at, _d.run_id, _d.backfill_id, _d.fire_on_failure)
        .where(_d.shard == shard, _ARMED, place)
        .order_by(_d.due_at, _d.id)
        .limit(limit)
    ).all()
    ended: dict[int | str, str] = {}
    for about, ended_at, keys in (
        (run, run.c.finished_at, {row.run_id for row in window if row.run_id is not None}),
        (backfill, backfill.c.ended_at, {row.backfill_id for row in window if row.run_id is None}),
    ):
        if keys:
            which = and_(about.c.id == func.any(sorted(keys)), ended_at.is_not(None))
            ended.update((row.id, row.state) for row in conn.execute(select(about.c.id, about.c.state).where(which)))
    states = ((row, ended.get(row.backfill_id if row.run_id is None else row.run_id)) for row in window)
    left = [row.id for row, state in states if state and not (row.fire_on_failure and state != str(RunState.SUCCEEDED))]
    return left, Place(window[-1].due_at, window[-1].id) if len(window) == limit else None


def late(conn: Connection, shard: int, ids: Collection[int]) -> Sequence[Values]:
    """Those of ``ids`` that were missed and did not recover yet. An end is final, so nothing needs a lock here."""
    which = and_(_d.shard == shard, _d.id == func.any(list(ids)), _is(DeadlineState.MISSED), _d.recovered_at.is_(None))
    return [row._asdict() for query in (_of_runs(), _of_backfills()) for row in conn.execute(query.where(which))]


def of_digest(conn: Connection, digest_id: int, limit: int) -> Sequence[Values]:
    """The deadline that opened a digest, and the next ones in the order in which they were missed: ``limit`` in all."""
    lead = _of_runs().where(_d.id == digest_id)
    others = (
        _of_runs()
        .where(_d.digest_id == digest_id, _d.id != digest_id)
        .order_by(_d.decided_at, _d.due_at, _d.id)
        .limit(limit - 1)
    )
    return [row._asdict() for query in (lead, others) for row in conn.execute(query)]


def count_of_digest(conn: Connection, digest_id: int) -> int:
    """How many deadlines a digest has, from an index."""
    return conn.execute(select(func.count()).select_from(deadline).where(_d.digest_id == digest_id)).scalar_one()


@dataclass(frozen=True)
class TaskEnd:
    """One attempt of one task of a run, as it is."""

    attempt: int
    state: str
    finished_at: datetime | None


def task_ends(conn: Connection, pairs: Collection[tuple[int, str]]) -> dict[tuple[int, str], list[TaskEnd]]:
    """The attempts of tasks, by (run id, task); the runs are locked by the caller."""
    chosen = sorted(pairs)
    given = rows_of("given", {"run_id": (BigInteger, [id for id, _ in chosen]), "task": (Text, [t for _, t in chosen])})
    t = task_run.c
    rows = conn.execute(
        select(t.run_id, t.task, t.attempt, t.state, t.finished_at).where(
            t.run_id == given.c.run_id, t.task == given.c.task
        )
    )
    found: dict[tuple[int, str], list[TaskEnd]] = {}
    for row in rows:
        found.setdefault((row.run_id, row.task), []).append(TaskEnd(row.attempt, row.state, row.finished_at))
    return found


@dataclass(frozen=True)
class BackfillFacts:
    """What a miss tells about its backfill."""

    runs: int
    runs_done: int
    timezone: str


def backfill_facts(conn: Connection, ids: Collection[str]) -> dict[str, BackfillFacts]:
    """How far backfills are; the unfinished runs are counted, in two small indexes."""

    def count(condition: ColumnElement[bool]) -> ColumnElement[int]:
        mine = run.c.backfill_id == backfill.c.id
        return select(func.count()).select_from(run).where(mine, condition).scalar_subquery()

    queued = count(run.c.state == literal(str(RunState.QUEUED), literal_execute=True))
    live = count(run.c.slot.is_not(None))
    rows = conn.execute(
        select(
            backfill.c.id,
            backfill.c.runs,
            (queued + live).label("unfinished"),
            backfill.c.definition["timezone"].astext.label("timezone"),
        ).where(backfill.c.id == func.any(list(ids)))
    )
    return {row.id: BackfillFacts(row.runs, row.runs - row.unfinished, row.timezone) for row in rows}


def next_moment(conn: Connection, shard: int, excluding: Collection[int] = ()) -> tuple[datetime | None, datetime]:
    """The next moment of a shard at which something is to be done, leaving out ``but``, and the database's time."""
    first = _earliest(_d.due_at, _d.shard == shard, _ARMED, *_except(excluding))
    closes = _earliest(
        deadline_digest.c.closes_at, deadline_digest.c.shard == shard, deadline_digest.c.closed_at.is_(None)
    )
    due_at, now = conn.execute(select(func.least(first, closes, type_=Moment), func.clock_timestamp())).one()
    return due_at, now


def _except(ids: Collection[int]) -> list[ColumnElement[bool]]:
    return [_d.id != func.all(sorted(ids))] if ids else []


def _earliest(column: ColumnElement[Any], *which: ColumnElement[bool]) -> ColumnElement[Any]:
    return select(column).where(*which).order_by(column).limit(1).scalar_subquery()


def count_waiting(conn: Connection) -> dict[str, float]:
    """Armed deadlines of all shards, and those of them whose moment is past."""
    due = func.count().filter(_d.due_at <= select(func.clock_timestamp()).scalar_subquery())
    armed, overdue = conn.execute(select(func.count(), due).where(_ARMED)).one()
    return {"armed": armed, "due": overdue}


# who is to be told of an end


def open_of_runs(conn: Connection, run_ids: Collection[int]) -> list[int]:
    """Deadlines of runs that ended, those of single tasks too, about which there may be something to tell."""
    return _ids(conn, _d.run_id == func.any(list(run_ids)))


def open_of_tasks(conn: Connection, pairs: Iterable[tuple[int, str]]) -> list[int]:
    """The same for (run id, task) pairs."""
    chosen = sorted(pairs)
    given = rows_of("given", {"run_id": (BigInteger, [id for id, _ in chosen]), "task": (Text, [t for _, t in chosen])})
    return _ids(conn, and_(_d.run_id == given.c.run_id, _d.task == given.c.task))


def open_of_backfill(conn: Connection, backfill_id: str) -> list[int]:
    """The same for the deadlines of a whole backfill."""
    return _ids(conn, and_(_d.backfill_id == backfill_id, _d.run_id.is_(None)))


def _ids(conn: Connection, which: ColumnElement[bool]) -> list[int]:
    return list(conn.execute(select(_d.id).where(which, _OPEN).order_by(_d.id)).scalars())


# writing


def end(conn: Connection, to: DeadlineState, rows: Sequence[Values], decided_at: datetime) -> set[int]:
    """Move armed deadlines (``id`` and columns to set) to an end; returns the ids that landed."""
    values: dict[str, Any] = {"decided_at": decided_at}
    return {row["id"] for row in transition(conn, MACHINE, deadline, to, rows, values=values)}


def recover(conn: Connection, moments: Mapping[int, datetime]) -> set[int]:
    """Note when missed deadlines were done after all; returns the ids of those of which that was not known yet."""
    if not moments:
        return set()
    given = rows_of("given", {"id": (BigInteger, list(moments)), "at": (Moment, list(moments.values()))})
    statement = (
        update(deadline)
        .where(_d.id == given.c.id, _is(DeadlineState.MISSED), _d.recovered_at.is_(None))
        .values(recovered_at=given.c.at)
        .returning(_d.id)
    )
    return set(conn.execute(statement).scalars())


def insert_callbacks(conn: Connection, shard: int, rows: Sequence[Values]) -> None:
    """Callbacks (``deadline_id``, ``name``, ``kind``, ``options``, ``kwargs``, ``event``, ``pipeline``).

    The key refuses a second one of a deadline.
    """
    if not rows:
        return
    kinds = {
        "deadline_id": BigInteger,
        "name": Text,
        "kind": Text,
        "options": JSONB,
        "kwargs": JSONB,
        "event": JSONB,
        "pipeline": Text,
    }
    given = rows_of("given", {name: (kind, [row[name] for row in rows]) for name, kind in kinds.items()})
    pending = literal(str(CallbackState.PENDING))
    conn.execute(
        insert(callback).from_select([*kinds, "shard", "state"], select(*given.c, literal(shard, Integer), pending))
    )
