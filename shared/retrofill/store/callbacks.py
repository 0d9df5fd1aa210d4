"""Callback rows: claimed with a token and a lease, renewed, and recorded under the token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    Connection,
    DateTime,
    Engine,
    FromClause,
    Select,
    cast,
    delete,
    func,
    literal,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.sql.elements import ColumnElement

from retrofill.domain.callback import MACHINE, CallbackState
from retrofill.store.tables import callback, webhook_off
from retrofill.store.transition import Values, transition

S = CallbackState
# NOTIFY channel; the payload is the shard with a callback that waits for another try.
CHANNEL = "retrofill_callbacks"


def due(conn: Connection, shard: int, excluding: Collection[str], of_each: int) -> Sequence[Values]:
    """The shard's due callbacks, up to ``of_each`` per pipeline, except pipelines ``excluding``.

    Each is ``deadline_id``, ``pipeline`` and ``since``. Finding a pipeline takes one index probe,
    however many of its callbacks are due.
    """
    c, pipelines = callback.c, _pipelines(shard)
    first = (
        select(c.deadline_id, c.pipeline, c.next_try_at.label("since"))
        .where(c.shard == shard, _is(S.PENDING), c.pipeline == pipelines.c.pipeline, c.next_try_at <= _once())
        .order_by(c.next_try_at)
        .limit(of_each)
        .lateral("first")
    )
    statement = select(first).select_from(pipelines.join(first, true())).where(_not_of(pipelines, excluding))
    return [row._asdict() for row in conn.execute(statement)]


def next_try(conn: Connection, shard: int, excluding: Collection[str]) -> datetime | None:
    """When the next callback of the shard is due, except those of the pipelines ``excluding``."""
    c, pipelines = callback.c, _pipelines(shard)
    first = (
        select(c.next_try_at)
        .where(c.shard == shard, _is(S.PENDING), c.pipeline == pipelines.c.pipeline)
        .order_by(c.next_try_at)
        .limit(1)
        .lateral("first")
    )
    statement = select(func.min(first.c.next_try_at)).select_from(pipelines.join(first, true()))
    moment: datetime | None = conn.execute(statement.where(_not_of(pipelines, excluding))).scalar()
    return moment


def next_lapse(conn: Connection, shard: int) -> tuple[datetime | None, datetime]:
    """When the next lease ends, and the database's time."""
    c = callback.c
    lapse = (
        select(c.lease_until).where(c.shard == shard, _is(S.RUNNING)).order_by(c.lease_until).limit(1).scalar_subquery()
    )
    moment, now = conn.execute(select(lapse, _now())).one()
    return moment, now


def lock_pending(conn: Connection, ids: Sequence[int]) -> Sequence[Values]:
    """The pending callbacks among ``ids``, locked, in the order of ``ids``.

    Locked ones are skipped.

    Each has everything a call needs; ``off_since`` is when its address was switched off.
    """
    if not ids:
        return []
    c, off = callback.c, webhook_off.c
    statement = (
        select(
            c.deadline_id,
            c.name,
            c.kind,
            c.options,
            c.kwargs,
            c.event,
            c.pipeline,
            c.attempts,
            c.runners_lost,
            off.since.label("off_since"),
        )
        .join_from(callback, webhook_off, (off.url == c.name) & (c.kind == "webhook"), isouter=True)
        .where(c.deadline_id == func.any(list(ids)), _is(S.PENDING))
        .order_by(func.array_position(list(ids), c.deadline_id))
        .with_for_update(key_share=True, skip_locked=True, of=callback)
    )
    return [row._asdict() for row in conn.execute(statement)]


def lock_lapsed(conn: Connection, shard: int, excluding: Collection[str]) -> Sequence[Values]:
    """The shard's callbacks with an ended lease, locked, except the tokens ``excluding``.

    The lock comes before the decision, so a lease renewed in between does not count as ended.
    """
    c = callback.c
    statement = (
        select(c.deadline_id, c.name, c.kind, c.options, c.pipeline, c.attempts, c.runners_lost, c.token)
        .where(c.shard == shard, _is(S.RUNNING), c.lease_until <= _once(), c.token != func.all(list(excluding)))
        .order_by(c.deadline_id)
        .with_for_update(key_share=True, skip_locked=True)
    )
    return [row._asdict() for row in conn.execute(statement)]


def claim(conn: Connection, rows: Sequence[Values], lease_seconds: float) -> set[int]:
    """Claim callbacks (``deadline_id``, ``token``, ``attempts``); returns the claimed ids."""
    values = {"lease_until": _in(lease_seconds)}
    return {row["deadline_id"] for row in transition(conn, MACHINE, callback, S.RUNNING, rows, values=values)}


def renew(engine: Engine, deadline_id: int, token: str, lease_seconds: float) -> bool:
    """Extend a lease in its own transaction; false if the token is no longer the claim's."""
    c = callback.c
    mine = (c.deadline_id == deadline_id) & (c.token == token) & _is(S.RUNNING)
    with engine.begin() as conn:
        return conn.execute(update(callback).where(mine).values(lease_until=_in(lease_seconds))).rowcount == 1


def succeed(conn: Connection, deadline_id: int, token: str) -> bool:
    """Record a success; false if the token is no longer the claim's."""
    return _leave(conn, S.SUCCEEDED, deadline_id, token, {"finished_at": _now()})


def fail(conn: Connection, deadline_id: int, token: str, error: str, runners_lost: int) -> bool:
    """Record a permanent failure; false if the token is no longer the claim's."""
    values = {"finished_at": _now(), "last_error": error, "runners_lost": runners_lost}
    return _leave(conn, S.FAILED, deadline_id, token, values)


def try_again(
    conn: Connection, deadline_id: int, token: str, error: str, after_seconds: float, runners_lost: int
) -> bool:
    """Record a failed try and when to retry; false if the token is no longer the claim's."""
    values = {"next_try_at": _in(after_seconds), "last_error": error, "runners_lost": runners_lost}
    return _leave(conn, S.PENDING, deadline_id, token, values)


def replay(conn: Connection, deadline_id: int) -> Values | None:
    """Make a failed callback pending again, with all its tries; ``None`` if it is not ``failed``.

    The last error stays until the next one. The row is marked as replayed: it is sent even to an
    address that is switched off.
    """
    marked = callback.c.options.op("||")(cast({"replayed": True}, JSONB))
    values = {"attempts": 0, "runners_lost": 0, "next_try_at": _now(), "finished_at": None, "options": marked}
    if not transition(
        conn, MACHINE, callback, S.PENDING, [{"deadline_id": deadline_id}], from_states=[S.FAILED], values=values
    ):
        return None
    found = conn.execute(select(callback).where(callback.c.deadline_id == deadline_id))
    return dict(found.mappings().one())


def state_of(conn: Connection, deadline_id: int) -> str | None:
    """The callback's state, or ``None`` if it does not exist."""
    return conn.execute(select(callback.c.state).where(callback.c.deadline_id == deadline_id)).scalar()


def switch_off(conn: Connection, url: str, deadline_id: int) -> None:
    """Send nothing more to ``url``, which replied 410 Gone to this deadline's callback."""
    conn.execute(insert(webhook_off).values(url=url, deadline_id=deadline_id).on_conflict_do_nothing())


def switch_on(conn: Connection, url: str) -> None:
    conn.execute(delete(webhook_off).where(webhook_off.c.url == url))


def _leave(conn: Connection, to: CallbackState, deadline_id: int, token: str, values: dict[str, Any]) -> bool:
    row = {"deadline_id": deadline_id, "token": token}
    values = {**values, "token": None, "lease_until": None}
    return bool(transition(conn, MACHINE, callback, to, [row], guard=["token"], from_states=[S.RUNNING], values=values))


def _pipelines(shard: int) -> CTE:
    """Pipelines with pending callbacks in the shard: a loose index scan that ends with a null."""
    names = select(_next_pipeline(shard, callback).scalar_subquery().label("pipeline")).cte("pipelines", recursive=True)
    other = callback.alias("other")
    following = _next_pipeline(shard, other).where(other.c.pipeline > names.c.pipeline).correlate(names)
    return names.union_all(select(following.scalar_subquery()).where(names.c.pipeline.is_not(None)))


def _next_pipeline(shard: int, table: FromClause) -> Select[tuple[str]]:
    c = table.c
    return select(c.pipeline).where(c.shard == shard, _is(S.PENDING, table)).order_by(c.pipeline).limit(1)


def _not_of(pipelines: CTE, excluding: Collection[str]) -> ColumnElement[bool]:
    return pipelines.c.pipeline.is_not(None) & (pipelines.c.pipeline != func.all(list(excluding)))


def _is(state: CallbackState, table: FromClause = callback) -> ColumnElement[bool]:
    """A constant in the statement, so every plan can use the partial index."""
    return table.c.state == literal(str(state), literal_execute=True)


def _now() -> ColumnElement[datetime]:
    return func.clock_timestamp(type_=DateTime(timezone=True))


def _once() -> ColumnElement[datetime]:
    """A subquery is computed once, so it can bound an index scan."""
    return select(_now()).scalar_subquery()


def _in(seconds: float) -> ColumnElement[datetime]:
    return _now() + timedelta(seconds=seconds)
