"""Deadline rows: which are due, which to decide, and how they ended.

A row read here has the columns of ``_DEADLINE`` and those of its run or backfill:
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
from retrofill.store.tables import Moment, backfill, callback, deadline, deadline_digest, run
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
    """A constant in the statement, so every plan can use a partial index."""
    return _d.state == literal(str(state), literal_execute=True)


_ARMED = _is(DeadlineState.ARMED)
# Deadlines that the end of their run may decide or recover.
_OPEN = or_(_ARMED, and_(_is(DeadlineState.MISSED), _d.recovered_at.is_(None)))


# reading, with their runs or backfills


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
    """The first due deadlines except ``excluding``, each with its run or backfill, which is locked.

    Locked ones are skipped without counting towards ``limit``: a transaction that cancels thousands
    of runs does not delay other deadlines. Nothing waits here, so no lock order can deadlock.
    """
    # A subquery is computed once, so it can bound the index scan.
    past = _d.due_at <= select(func.clock_timestamp()).scalar_subquery()
    due = and_(_d.shard == shard, _ARMED, past, *_except(excluding))
    return _lock(conn, due, limit)


def lock_named(conn: Connection, shard: int, ids: Collection[int]) -> Sequence[Values]:
    """The shard's armed deadlines among ``ids``, their runs or backfills locked.

    Locked ones are skipped.
    """
    return _lock(conn, and_(_d.shard == shard, _ARMED, _d.id == func.any(list(ids))), len(ids))


def _lock(conn: Connection, which: ColumnElement[bool], limit: int) -> Sequence[Values]:
    # Postgres rereads a row it locks, so these are the runs as they are under the lock.
    found: list[Values] = []
    for statement, locked in ((_of_backfills(), backfill), (_of_runs(), run)):
        first = statement.where(which).order_by(_d.due_at, _d.id).limit(limit)
        rows = conn.execute(first.with_for_update(key_share=True, skip_locked=True, of=locked))
        found += [row._asdict() for row in rows]
    return found


def armed(conn: Connection, shard: int, ids: Collection[int]) -> list[int]:
    """The shard's armed deadlines among ``ids``, locked or not."""
    which = and_(_d.shard == shard, _ARMED, _d.id == func.any(list(ids)))
    return list(conn.execute(select(_d.id).where(which).order_by(_d.id)).scalars())


@dataclass(frozen=True)
class Place:
    """Position of a scan of a shard's armed deadlines, in the order they are due."""

    due_at: datetime
    id: int


START = Place(datetime.min.replace(tzinfo=UTC) + timedelta(days=366), 0)


def left_armed(conn: Connection, shard: int, after: Place, limit: int = BATCH) -> tuple[list[int], Place | None]:
    """Of the next ``limit`` armed deadlines, those about what has ended, and where to continue.

    Those that wait for their moment to fire on a failure are excluded. The position is ``None`` at
    the end.
    """
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
    """The missed deadlines among ``ids`` that have not recovered.

    An end is final, so no lock is needed.
    """
    which = and_(_d.shard == shard, _d.id == func.any(list(ids)), _is(DeadlineState.MISSED), _d.recovered_at.is_(None))
    return [row._asdict() for query in (_of_runs(), _of_backfills()) for row in conn.execute(query.where(which))]


def of_digest(conn: Connection, digest_id: int, limit: int) -> Sequence[Values]:
    """At most ``limit`` deadlines of a digest: its opener, then others in the order missed."""
    lead = _of_runs().where(_d.id == digest_id)
    others = (
        _of_runs()
        .where(_d.digest_id == digest_id, _d.id != digest_id)
        .order_by(_d.decided_at, _d.due_at, _d.id)
        .limit(limit - 1)
    )
    return [row._asdict() for query in (lead, others) for row in conn.execute(query)]


def count_of_digest(conn: Connection, digest_id: int) -> int:
    """Number of deadlines in a digest."""
    return conn.execute(select(func.count()).select_from(deadline).where(_d.digest_id == digest_id)).scalar_one()


def next_moment(conn: Connection, shard: int, excluding: Collection[int] = ()) -> tuple[datetime | None, datetime]:
    """When the shard's next deadline is due or digest closes, and the database's time."""
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
    """Armed deadlines of all shards, and how many of them are due."""
    due = func.count().filter(_d.due_at <= select(func.clock_timestamp()).scalar_subquery())
    armed, overdue = conn.execute(select(func.count(), due).where(_ARMED)).one()
    return {"armed": armed, "due": overdue}


# to be resolved when something ends


def open_of_runs(conn: Connection, run_ids: Collection[int]) -> list[int]:
    """Deadlines of ended runs and of their tasks that may be decided or recovered."""
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
    """Move armed deadlines (``id`` and columns to set) to ``to``; returns the ids that landed."""
    values: dict[str, Any] = {"decided_at": decided_at}
    return {row["id"] for row in transition(conn, MACHINE, deadline, to, rows, values=values)}


def recover(conn: Connection, moments: Mapping[int, datetime]) -> set[int]:
    """Record when missed deadlines recovered; returns the ids that had not recovered before."""
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
    """Insert callbacks, pending.

    ``rows`` have ``deadline_id``, ``name``, ``kind``, ``options``, ``kwargs``, ``event`` and
    ``pipeline``. Raises ``IntegrityError`` if a deadline has a callback.
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
