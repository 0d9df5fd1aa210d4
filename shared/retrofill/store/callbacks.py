"""Callbacks as rows: claimed with a token and a lease, kept alive, recorded under the token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, DateTime, Engine, func, literal, select, text, update
from sqlalchemy.sql.elements import ColumnElement

from retrofill.domain.callback import MACHINE, CallbackState
from retrofill.store.tables import callback, deadline, run
from retrofill.store.transition import Values, transition

S = CallbackState
# Tells the owner of a shard (the payload) that one of its callbacks waits for another try.
CHANNEL = "retrofill_callbacks"


def lock_pending(conn: Connection, shard: int, limit: int) -> Sequence[Values]:
    """Locked callbacks of the shard whose time to be called came, each with what its function may want to know."""
    c, d = callback.c, deadline.c
    statement = (
        select(
            c.deadline_id,
            c.name,
            c.kwargs,
            c.attempts,
            d.alert,
            d.pipeline,
            d.backfill_id,
            d.run_id,
            d.reference,
            d.due_at,
            d.decided_at.label("detected_at"),
            run.c.interval_start,
            run.c.interval_end,
        )
        .join_from(callback, deadline, d.id == c.deadline_id)
        .join(run, run.c.id == d.run_id)
        .where(c.shard == shard, _is(S.PENDING), c.next_try_at <= _once())
        .order_by(c.next_try_at, c.deadline_id)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True, of=callback)
    )
    return [row._asdict() for row in conn.execute(statement)]


def lock_lapsed(conn: Connection, shard: int, but: Collection[str]) -> Sequence[Values]:
    """Locked callbacks of the shard whose lease ended, except those under the tokens ``but``.

    The lock comes before the decision, so that a lease that was renewed meanwhile is not taken for ended.
    """
    c = callback.c
    statement = (
        select(c.deadline_id, c.name, c.attempts, c.token)
        .where(c.shard == shard, _is(S.RUNNING), c.lease_until <= _once(), c.token != func.all(list(but)))
        .order_by(c.deadline_id)
        .with_for_update(key_share=True, skip_locked=True)
    )
    return [row._asdict() for row in conn.execute(statement)]


def claim(conn: Connection, rows: Sequence[Values], lease_seconds: float) -> set[int]:
    """Claim pending callbacks (``deadline_id``, ``token``, ``attempts``); returns the ids that landed."""
    values = {"lease_until": _in(lease_seconds)}
    return {row["deadline_id"] for row in transition(conn, MACHINE, callback, S.RUNNING, rows, values=values)}


def renew(engine: Engine, deadline_id: int, token: str, lease_seconds: float) -> bool:
    """Extend a lease, in a transaction of its own; False where the token is not the claim's any more."""
    c = callback.c
    mine = (c.deadline_id == deadline_id) & (c.token == token) & _is(S.RUNNING)
    with engine.begin() as conn:
        return conn.execute(update(callback).where(mine).values(lease_until=_in(lease_seconds))).rowcount == 1


def succeed(conn: Connection, deadline_id: int, token: str) -> bool:
    """Record that the function returned; False where the token is not the claim's any more."""
    return _leave(conn, S.SUCCEEDED, deadline_id, token, {"finished_at": _now()})


def fail(conn: Connection, deadline_id: int, token: str, error: str) -> bool:
    """Record a failure for good; False where the token is not the claim's any more."""
    return _leave(conn, S.FAILED, deadline_id, token, {"finished_at": _now(), "last_error": error})


def try_again(conn: Connection, deadline_id: int, token: str, error: str, after_seconds: float, shard: int) -> bool:
    """Record a failed try that is to be repeated, and tell the shard's owner; False where the token is not current."""
    values = {"next_try_at": _in(after_seconds), "last_error": error}
    if not _leave(conn, S.PENDING, deadline_id, token, values):
        return False
    conn.execute(text("SELECT pg_notify(:channel, :shard)"), {"channel": CHANNEL, "shard": str(shard)})
    return True


def next_moments(conn: Connection, shard: int) -> tuple[datetime | None, datetime | None, datetime]:
    """When the next pending callback is to be called, when the next lease ends, and the database's time."""
    c = callback.c
    pending = _first(c.next_try_at, shard, S.PENDING)
    lapse = _first(c.lease_until, shard, S.RUNNING)
    next_try, next_lapse, now = conn.execute(select(pending, lapse, _now())).one()
    return next_try, next_lapse, now


def _leave(conn: Connection, to: CallbackState, deadline_id: int, token: str, values: dict[str, Any]) -> bool:
    row = {"deadline_id": deadline_id, "token": token}
    values = {**values, "token": None, "lease_until": None}
    return bool(transition(conn, MACHINE, callback, to, [row], guard=["token"], frm=[S.RUNNING], values=values))


def _first(column: ColumnElement[datetime], shard: int, state: CallbackState) -> ColumnElement[datetime]:
    return select(column).where(callback.c.shard == shard, _is(state)).order_by(column).limit(1).scalar_subquery()


def _is(state: CallbackState) -> ColumnElement[bool]:
    """As a constant in the statement, so that the partial index is used whatever the plan."""
    return callback.c.state == literal(str(state), literal_execute=True)


def _now() -> ColumnElement[datetime]:
    return func.clock_timestamp(type_=DateTime(timezone=True))


def _once() -> ColumnElement[datetime]:
    """As a subquery it is computed once, so that an index ends where the future begins."""
    return select(_now()).scalar_subquery()


def _in(seconds: float) -> ColumnElement[datetime]:
    return _now() + timedelta(seconds=seconds)
