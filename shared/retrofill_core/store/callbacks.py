"""Callback rows: claimed with a token and a lease, renewed, and recorded under the token."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Integer,
    Interval,
    Select,
    Text,
    bindparam,
    delete,
    func,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert

from retrofill_core.domain.callback import MACHINE, CallbackState, Occasion, shown
from retrofill_core.store.rows import columns_of
from retrofill_core.store.sql import Arrays, constant, in_state, none_of, one_of
from retrofill_core.store.tables import Moment, callback, webhook_off
from retrofill_core.store.transition import FromNow, Plus, Values, transition

S = CallbackState
_c = callback.c
_SHARD = bindparam("shard", type_=Integer)
_NOT_SET_ASIDE = none_of(_c.deadline_id, "set_aside")
_NOW = func.clock_timestamp(type_=Moment)
# A subquery is computed once, so it can bound an index scan.
_ONCE = select(_NOW).scalar_subquery()
# NOTIFY channel; the payload is the shard with a callback that waits for another try.
CHANNEL = "retrofill_callbacks"


@dataclass(frozen=True, slots=True)
class NewCallback:
    """A callback to insert. ``event``: what it is called with, empty while it collects failures.

    ``backfill_id``, ``occasion``, ``place``: of one that a pipeline lists.
    """

    deadline_id: int
    shard: int
    name: str
    kind: str
    options: Mapping[str, Any]
    kwargs: dict[str, Any]
    event: dict[str, Any]
    pipeline: str
    next_try_at: datetime
    backfill_id: str | None = None
    occasion: str | None = None
    place: int | None = None
    collects: bool = False
    order_key: str | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """A callback that is due."""

    deadline_id: int
    pipeline: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """A callback, whatever its state."""

    # Without an occasion, its deadline's id too.
    deadline_id: int
    # As in the table.
    name: str
    kind: str
    options: Mapping[str, Any]
    pipeline: str
    attempts: int
    runners_lost: int
    # What a pipeline lists it for; ``None`` for a deadline's.
    occasion: str | None = None
    backfill_id: str | None = None

    @property
    def label(self) -> str:
        """Its name in events and logs, which show no address."""
        return shown(self.kind, self.name)

    @property
    def at_most_once(self) -> bool:
        """Whether a call with an uncertain outcome must not be repeated."""
        return bool(self.options.get("at_most_once"))

    @property
    def has_receiver(self) -> bool:
        """Whether it is sent somewhere, which may be away, instead of calling a function."""
        return self.kind != "function"

    @property
    def replayed(self) -> bool:
        """Whether a user requested this call after the callback had failed."""
        return bool(self.options.get("replayed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending(Callback):
    """A callback to claim.

    ``off_since``: when an address with the hash ``off_address`` was switched off. ``newer``: the last one of its order key
    that waits behind it.
    """

    kwargs: dict[str, Any]
    # What happened, as published; empty in rows of an older release.
    event: dict[str, Any]
    collects: bool
    off_since: datetime | None
    off_address: str | None
    newer: int | None
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(Callback):
    """A callback that a runner calls; ``attempts`` counts this call."""

    token: str


def _next_pipeline(table: FromClause) -> Select[str]:
    c = table.c
    return select(c.pipeline).where(c.shard == _SHARD, in_state(table, S.PENDING)).order_by(c.pipeline).limit(1)


def _pipelines() -> CTE:
    """Pipelines with pending callbacks in the shard: a loose index scan that ends with a null."""
    names = select(_next_pipeline(callback).scalar_subquery().label("pipeline")).cte("pipelines", recursive=True)
    other = callback.alias("other")
    following = _next_pipeline(other).where(other.c.pipeline > names.c.pipeline).correlate(names)
    return names.union_all(select(following.scalar_subquery()).where(names.c.pipeline.is_not(None)))


def _place(table: FromClause) -> ColumnElement[Any]:
    """The order of facts. Not of ids: a deadline's is older than its miss."""
    return tuple_(table.c.made_at, table.c.deadline_id)


def _ends_windows(table: FromClause) -> ColumnElement[bool]:
    """Failed runs do not end the windows of others: their receiver may be in the list twice."""
    return func.coalesce(table.c.occasion, "") != constant(Occasion.RUN_FAILED)


def _behind() -> ColumnElement[bool]:
    """Whether another callback of its order key comes first, or is being called."""
    other = callback.alias("ahead")
    earlier = in_state(other, S.PENDING) & (_place(other) < _place(callback))
    # Of those that are due, one is first: or each would be refused for the others' sake, by the unique index.
    over = ~other.c.collects | (other.c.next_try_at <= _ONCE)
    return (
        select(other.c.deadline_id)
        .where(other.c.order_key == _c.order_key, other.c.deadline_id != _c.deadline_id)
        .where(in_state(other, S.RUNNING) | (earlier & (over | _ends_windows(callback))))
        .correlate(callback)
        .exists()
    )


_BEHIND = _behind()
_PIPELINES = _pipelines()
WAITS = in_state(callback, S.PENDING) & (_c.shard == _SHARD) & _NOT_SET_ASIDE & ~_BEHIND
CALLS_A_FUNCTION = _c.kind == constant("function")
_PENDING = (
    select(_c.deadline_id, _c.pipeline, _c.next_try_at)
    .where(_c.pipeline == _PIPELINES.c.pipeline, CALLS_A_FUNCTION | none_of(_c.name, "down"), WAITS)
    .order_by(_c.next_try_at)
)
_OF_OTHERS = _PIPELINES.c.pipeline.is_not(None) & none_of(_PIPELINES.c.pipeline, "excluding")
_FIRST = _PENDING.where(_c.next_try_at <= _ONCE).limit(bindparam("of_each", type_=Integer)).lateral("first")
_DUE = (
    select(_FIRST.c.deadline_id, _FIRST.c.pipeline, _FIRST.c.next_try_at.label("since"))
    .select_from(_PIPELINES.join(_FIRST, true()))
    .where(_OF_OTHERS)
)
_NEXT = _PENDING.limit(1).lateral("next")
_NEXT_TRY = select(func.min(_NEXT.c.next_try_at)).select_from(_PIPELINES.join(_NEXT, true())).where(_OF_OTHERS)


def due(
    conn: Connection,
    shard: int,
    excluding: Collection[str],
    of_each: int,
    set_aside: Collection[int] = (),
    down: Collection[str] = (),
) -> list[Due]:
    """The shard's due callbacks, up to ``of_each`` per pipeline, except pipelines ``excluding`` and receivers ``down``.

    Rows with an id in ``set_aside`` are skipped, as in the functions below.
    Finding a pipeline takes one index probe,
    however many of its callbacks are due.
    """
    parameters = {
        "shard": shard,
        "excluding": list(excluding),
        "of_each": of_each,
        "set_aside": sorted(set_aside),
        "down": sorted(down),
    }
    return [Due(*row) for row in conn.execute(_DUE, parameters)]


def next_try(
    conn: Connection,
    shard: int,
    excluding: Collection[str],
    set_aside: Collection[int] = (),
    down: Collection[str] = (),
) -> datetime | None:
    """When the next callback of the shard is due, except those of the pipelines ``excluding`` and receivers ``down``."""
    given = {"excluding": list(excluding), "set_aside": sorted(set_aside), "down": sorted(down)}
    parameters = {"shard": shard, **given}
    moment: datetime | None = conn.execute(_NEXT_TRY, parameters).scalar()
    return moment


_WAITING = select(
    select(_c.deadline_id)
    .where(_c.shard == _SHARD, in_state(callback, S.PENDING), _c.next_try_at <= _ONCE, _BEHIND)
    .exists()
)


def any_behind(conn: Connection, shard: int) -> bool:
    """Whether a callback of the shard is due but for others of its order key."""
    return bool(conn.execute(_WAITING, {"shard": shard}).scalar_one())


_AFTER = callback.alias("after")
_OPEN = (
    select(_c.deadline_id)
    .where(_c.collects, _c.next_try_at > _ONCE)
    .where(
        select(_AFTER.c.deadline_id)
        .where(_AFTER.c.order_key == _c.order_key, _place(_AFTER) > _place(callback))
        .where(_AFTER.c.shard == _SHARD, in_state(_AFTER, S.PENDING), _ends_windows(_AFTER))
        .correlate(callback)
        .exists()
    )
    .order_by(_c.deadline_id)
    .with_for_update(key_share=True, skip_locked=True)
)
_END_WINDOW = (
    update(callback)
    .where(one_of(_c.deadline_id, "ids"), _c.collects)
    .values(next_try_at=_NOW, due_at=_NOW)
    .returning(_c.shard)
)


def end_windows(conn: Connection, shard: int) -> list[int]:
    """End the windows that callbacks of ``shard`` wait for. Returns the shards of those that are due now."""
    waited_for = list(conn.execute(_OPEN, {"shard": shard}).scalars())
    return sorted(set(conn.execute(_END_WINDOW, {"ids": waited_for}).scalars())) if waited_for else []


_LAPSES = (
    select(_c.lease_until)
    .where(_c.shard == _SHARD, in_state(callback, S.RUNNING), _NOT_SET_ASIDE)
    .order_by(_c.lease_until)
)
_NEXT_LAPSE = select(_LAPSES.limit(1).scalar_subquery(), _NOW)


def next_lapse(conn: Connection, shard: int, set_aside: Collection[int] = ()) -> tuple[datetime | None, datetime]:
    """When the next lease ends, and the database's time."""
    moment, now = conn.execute(_NEXT_LAPSE, {"shard": shard, "set_aside": sorted(set_aside)}).one()
    return moment, now


_CALL = columns_of(Callback, callback)
_NEWER = (
    select(_AFTER.c.deadline_id)
    .where(_AFTER.c.order_key == _c.order_key, _place(_AFTER) > _place(callback), in_state(_AFTER, S.PENDING))
    .correlate(callback)
    .order_by(_AFTER.c.made_at.desc(), _AFTER.c.deadline_id.desc())
    .limit(1)
    .scalar_subquery()
)
_LOCK_PENDING = (
    select(*_CALL, _c.kwargs, _c.event, _c.collects, _c.due_at)
    .add_columns(webhook_off.c.since.label("off_since"), webhook_off.c.address.label("off_address"))
    .add_columns(_NEWER.label("newer"))
    .join_from(callback, webhook_off, (webhook_off.c.name == _c.name) & (_c.kind == constant("webhook")), isouter=True)
    .where(one_of(_c.deadline_id, "ids"), in_state(callback, S.PENDING), ~_BEHIND)
    .order_by(func.array_position(bindparam("ids", type_=ARRAY(BigInteger)), _c.deadline_id))
    .with_for_update(key_share=True, skip_locked=True, of=callback)
)


def lock_pending(conn: Connection, ids: Sequence[int]) -> list[Pending]:
    """The pending callbacks among ``ids``, locked, in the order of ``ids``. Locked ones are skipped."""
    return [Pending(**row._asdict()) for row in conn.execute(_LOCK_PENDING, {"ids": list(ids)})] if ids else []


_LOCK_LAPSED = (
    select(*_CALL, _c.token)
    .where(_c.shard == _SHARD, in_state(callback, S.RUNNING), _c.lease_until <= _ONCE)
    .where(none_of(_c.token, "excluding"), _NOT_SET_ASIDE)
    .order_by(_c.deadline_id)
    .with_for_update(key_share=True, skip_locked=True)
)


def lock_lapsed(
    conn: Connection, shard: int, excluding: Collection[str], set_aside: Collection[int] = ()
) -> list[Claimed]:
    """The shard's callbacks with an ended lease, locked, except the tokens ``excluding``.

    The lock comes before the decision, so a lease renewed in between does not count as ended.
    """
    parameters = {"shard": shard, "excluding": list(excluding), "set_aside": sorted(set_aside)}
    return [Claimed(**row._asdict()) for row in conn.execute(_LOCK_LAPSED, parameters)]


def claim(conn: Connection, rows: Sequence[Values], lease_seconds: float) -> set[int]:
    """Claim callbacks (``deadline_id``, ``token``, ``attempts``); returns the claimed ids."""
    values = {"lease_until": FromNow(timedelta(seconds=lease_seconds))}
    return {id for id, *_ in transition(conn, MACHINE, callback, S.RUNNING, rows, values=values)}


_RENEW = (
    update(callback)
    .where(_c.deadline_id == bindparam("id"), _c.token == bindparam("claim"), in_state(callback, S.RUNNING))
    .values(lease_until=_NOW + bindparam("length", type_=Interval))
)


def renew(engine: Engine, deadline_id: int, token: str, lease_seconds: float) -> bool:
    """Extend a lease in its own transaction; false if the token is no longer the claim's."""
    parameters = {"id": deadline_id, "claim": token, "length": timedelta(seconds=lease_seconds)}
    with engine.begin() as conn:
        return conn.execute(_RENEW, parameters).rowcount == 1


def drop(conn: Connection, reasons: Mapping[int, str]) -> set[int]:
    """End pending callbacks that nobody needs any more, and why; returns the ids of those that landed."""
    rows = [{"deadline_id": id, "last_error": why} for id, why in reasons.items()]
    values = {"finished_at": FromNow(), "collects": False}
    return {id for id, *_ in transition(conn, MACHINE, callback, S.DROPPED, rows, values=values)}


_NEXT_IN_ORDER = (
    select(_AFTER.c.shard)
    .join_from(callback, _AFTER, _AFTER.c.order_key == _c.order_key)
    .where(one_of(_c.deadline_id, "ids"), in_state(_AFTER, S.PENDING), _AFTER.c.deadline_id != _c.deadline_id)
    .order_by(_AFTER.c.shard)
)


def shards_in_order(conn: Connection, ids: Collection[int]) -> list[int]:
    """The shards of callbacks that may be called now that ``ids`` are not."""
    return sorted(set(conn.execute(_NEXT_IN_ORDER, {"ids": sorted(ids)}).scalars())) if ids else []


_DELIVERED = (
    select(_AFTER.c.deadline_id)
    .join_from(callback, _AFTER, _AFTER.c.order_key == _c.order_key)
    .where(_c.deadline_id == bindparam("id"), _place(_AFTER) > _place(callback), in_state(_AFTER, S.SUCCEEDED))
    .order_by(_AFTER.c.made_at.desc())
    .limit(1)
)


def newer_delivered(conn: Connection, deadline_id: int) -> int | None:
    """The last callback that its receiver got about the same backfill after this one; ``None`` if none."""
    newer: int | None = conn.execute(_DELIVERED, {"id": deadline_id}).scalar()
    return newer


def succeed(conn: Connection, deadline_id: int, token: str) -> bool:
    """Record a success; false if the token is no longer the claim's."""
    return _leave(conn, S.SUCCEEDED, deadline_id, token, {"finished_at": FromNow()})


def fail(conn: Connection, deadline_id: int, token: str, error: str, runners_lost: int) -> bool:
    """Record a permanent failure; false if the token is no longer the claim's."""
    values = {"finished_at": FromNow(), "last_error": error, "runners_lost": runners_lost}
    return _leave(conn, S.FAILED, deadline_id, token, values)


def try_again(
    conn: Connection, deadline_id: int, token: str, error: str, after_seconds: float, runners_lost: int
) -> bool:
    """Record a failed try and when to retry; false if the token is no longer the claim's."""
    values = {
        "next_try_at": FromNow(timedelta(seconds=after_seconds)),
        "last_error": error,
        "runners_lost": runners_lost,
    }
    return _leave(conn, S.PENDING, deadline_id, token, values)


def replay(conn: Connection, deadline_id: int) -> Callback | None:
    """Make a failed callback pending again, with all its tries; ``None`` if it is not ``failed``.

    The last error stays until the next one. The row is marked as replayed: it is sent even to an
    address that is switched off.
    """
    marked = Plus({"replayed": True})
    fresh = {"attempts": 0, "runners_lost": 0, "next_try_at": FromNow(), "due_at": FromNow(), "finished_at": None}
    values = {**fresh, "options": marked}
    if not transition(
        conn, MACHINE, callback, S.PENDING, [{"deadline_id": deadline_id}], from_states=[S.FAILED], values=values
    ):
        return None
    return Callback(**conn.execute(select(*_CALL).where(callback.c.deadline_id == deadline_id)).one()._asdict())


def state_of(conn: Connection, deadline_id: int) -> str | None:
    """The callback's state, or ``None`` if it does not exist."""
    return conn.execute(select(callback.c.state).where(callback.c.deadline_id == deadline_id)).scalar()


def switch_off(conn: Connection, name: str, address: str, deadline_id: int) -> None:
    """Send nothing more to the ``address``, given as a hash, which replied 410 Gone to this deadline's callback."""
    conn.execute(delete(webhook_off).where(webhook_off.c.name == name, webhook_off.c.address != address))
    off = {"name": name, "address": address, "deadline_id": deadline_id}
    conn.execute(insert(webhook_off).values(off).on_conflict_do_nothing())


def switch_on(conn: Connection, name: str) -> None:
    conn.execute(delete(webhook_off).where(webhook_off.c.name == name))


def _leave(conn: Connection, to: CallbackState, deadline_id: int, token: str, values: dict[str, Any]) -> bool:
    row = {"deadline_id": deadline_id, "token": token}
    values = {**values, "token": None, "lease_until": None}
    return bool(transition(conn, MACHINE, callback, to, [row], guard=["token"], from_states=[S.RUNNING], values=values))


_NEW = Arrays(
    "given",
    deadline_id=BigInteger,
    shard=Integer,
    name=Text,
    kind=Text,
    options=JSONB,
    kwargs=JSONB,
    event=JSONB,
    pipeline=Text,
    next_try_at=Moment,
    backfill_id=Text,
    occasion=Text,
    place=Integer,
    collects=Boolean,
    order_key=Text,
)
_COLUMNS = tuple(_NEW.c.keys())
_INSERT = insert(callback).from_select(
    [*_COLUMNS, "state", "due_at"], select(*_NEW.c, constant(S.PENDING), _NEW.c.next_try_at)
)


def insert_all(conn: Connection, new: Sequence[NewCallback]) -> None:
    """Insert callbacks, pending. Raises ``IntegrityError`` if a deadline or a backfill's end has one already."""
    if new:
        conn.execute(_INSERT, _NEW.values(**{name: [getattr(each, name) for each in new] for name in _COLUMNS}))
