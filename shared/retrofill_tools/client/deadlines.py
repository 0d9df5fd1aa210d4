"""Deadlines and callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ARRAY, ColumnElement, Connection, Select, Text, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by

from retrofill_core.domain.callback import CallbackState, shown
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.store.tables import backfill, callback, deadline, receiver, run, webhook_off
from retrofill_tools.client.documents import names


@dataclass(frozen=True)
class Deadline:
    """A deadline with the state of its run. A backfill's deadline has none. ``timezone``: of logical dates."""

    id: int
    alert: str
    pipeline: str
    backfill_id: str
    run_id: int | None
    task: str | None
    reference: str
    interval_seconds: float | None
    due_at: datetime
    state: str
    reason: str | None
    decided_at: datetime | None
    recovered_at: datetime | None
    digest_id: int | None
    callback: str | None
    kwargs: dict[str, Any]
    interval_start: datetime | None
    run_state: str | None
    timezone: str


@dataclass(frozen=True)
class CalledDeadline(Deadline):
    """With the outcome of its callback, or of its digest's."""

    callback_state: str | None
    callback_attempts: int | None
    callback_error: str | None


@dataclass(frozen=True)
class Callback:
    """What is called for a missed deadline, or on an ``occasion`` of a backfill.

    ``name``: of a webhook's address only the host. ``receiver_down_since``: it waits for a receiver that is down.
    """

    deadline_id: int
    name: str
    kind: str
    kwargs: dict[str, Any]
    state: str
    attempts: int
    runners_lost: int
    next_try_at: datetime
    last_error: str | None
    finished_at: datetime | None
    occasion: str | None
    alert: str | None
    pipeline: str
    backfill_id: str | None
    run_id: int | None
    receiver_down_since: datetime | None


@dataclass(frozen=True)
class FullCallback(Callback):
    """``switched_off_at``: since when its webhook has been disabled."""

    options: dict[str, Any]
    event: dict[str, Any]
    lease_until: datetime | None
    switched_off_at: datetime | None


@dataclass(frozen=True)
class Undelivered:
    """Callbacks about one backfill that a receiver has not got: ``waiting`` are called again, ``failed`` are not.

    ``since``: when the first of them happened. ``down_since``: of a receiver that is known to be down, of which the next
    call is at ``next_call_at``.
    """

    kind: str
    receiver: str
    waiting: int
    failed: int
    since: datetime
    down_since: datetime | None
    next_call_at: datetime | None
    last_error: str | None


_IS_DOWN = (
    (receiver.c.name == callback.c.name)
    & (callback.c.kind != "function")
    & callback.c.state.in_([CallbackState.PENDING, CallbackState.RUNNING])
)
_Found = TypeVar("_Found", bound=Deadline)
_Called = TypeVar("_Called", bound=Callback)
_OF_DEADLINE: dict[str, ColumnElement[Any]] = {
    **{column.name: column for column in deadline.c},
    "interval_start": run.c.interval_start,
    "run_state": run.c.state,
    "timezone": func.coalesce(backfill.c.definition.op("->>", return_type=Text())("timezone"), "UTC"),
    "callback_state": callback.c.state,
    "callback_attempts": callback.c.attempts,
    "callback_error": callback.c.last_error,
}
# Rows from an older version have no pipeline and backfill of their own.
_OF_CALLBACK: dict[str, ColumnElement[Any]] = {
    **{column.name: column for column in callback.c},
    **{name: deadline.c[name] for name in ("alert", "run_id")},
    **{name: func.coalesce(deadline.c[name], callback.c[name]) for name in ("pipeline", "backfill_id")},
    "receiver_down_since": receiver.c.down_since,
    "switched_off_at": webhook_off.c.since,
}


def find_deadlines(
    conn: Connection, filters: Mapping[str, str | int | None], limit: int, due_within: timedelta | None = None
) -> list[Deadline]:
    """Deadlines, the latest first; with ``due_within`` only armed ones that are due soon, the earliest first."""
    found = _where(_deadlines(Deadline), _OF_DEADLINE, filters).limit(limit)
    if due_within is None:
        found = found.order_by(deadline.c.due_at.desc(), deadline.c.id.desc())
    else:
        soon = func.clock_timestamp() + due_within
        found = found.where(deadline.c.state == DeadlineState.ARMED, deadline.c.due_at <= soon)
        found = found.order_by(deadline.c.due_at, deadline.c.id)
    return [_of_deadline(Deadline(*row[:-1]), row[-1]) for row in conn.execute(found)]


def find_deadline(conn: Connection, id: int) -> CalledDeadline | None:
    called = callback.c.deadline_id == func.coalesce(deadline.c.digest_id, deadline.c.id)
    found = _deadlines(CalledDeadline).outerjoin(callback, called).where(deadline.c.id == id)
    row = conn.execute(found).first()
    return None if row is None else _of_deadline(CalledDeadline(*row[:-1]), row[-1])


def _of_deadline(one: _Found, kind: str) -> _Found:
    """A deadline as people see it."""
    if one.callback is None:
        return one
    return replace(one, callback=shown(kind, one.callback))


def _deadlines(kind: type[Deadline]) -> Select[Any]:
    """The fields, then the kind of the callback."""
    columns = (_OF_DEADLINE[name].label(name) for name in names(kind))
    found = select(*columns, deadline.c.callback_kind).outerjoin_from(deadline, run, run.c.id == deadline.c.run_id)
    return found.outerjoin(backfill, backfill.c.id == deadline.c.backfill_id)


def find_callbacks(conn: Connection, filters: Mapping[str, str | int | None], limit: int) -> list[Callback]:
    """Callbacks, newest first."""
    found = _where(_callbacks(*names(Callback)), _OF_CALLBACK, filters)
    rows = conn.execute(found.order_by(callback.c.deadline_id.desc()).limit(limit))
    return [_without_address(Callback(*row)) for row in rows]


def _without_address(one: _Called) -> _Called:
    """A callback as people see it."""
    return replace(one, name=shown(one.kind, one.name))


def find_callback(conn: Connection, id: int) -> tuple[FullCallback, bool] | None:
    """A callback, and whether further failures may join it."""
    off = (webhook_off.c.name == callback.c.name) & (callback.c.kind == "webhook")
    found = _callbacks(*names(FullCallback), "collects").outerjoin(webhook_off, off)
    row = conn.execute(found.where(callback.c.deadline_id == id)).first()
    return None if row is None else (_without_address(FullCallback(*row[:-1])), row[-1])


def undelivered(conn: Connection, backfill_id: str) -> list[Undelivered]:
    """What receivers have not got about a backfill, by receiver; nothing that collects failures or is first called now."""
    c = callback.c
    missed = select(deadline.c.id).where(
        deadline.c.backfill_id == backfill_id, deadline.c.state == DeadlineState.MISSED
    )
    mine = select(c.deadline_id).where(c.backfill_id == backfill_id).union_all(missed).subquery()
    waiting = c.state.in_([CallbackState.PENDING, CallbackState.RUNNING]) & (c.next_try_at < func.clock_timestamp())
    waiting |= (c.state == CallbackState.PENDING) & (c.attempts > 0)
    failed = c.state == CallbackState.FAILED
    errors = func.array_agg(aggregate_order_by(c.last_error, c.next_try_at.desc()), type_=ARRAY(Text))
    last = errors.filter(c.last_error.is_not(None))
    found = (
        select(c.kind, c.name, func.count().filter(waiting), func.count().filter(failed), func.min(c.made_at))
        .add_columns(func.min(receiver.c.down_since), func.min(receiver.c.next_probe_at), last)
        .join_from(callback, mine, c.deadline_id == mine.c.deadline_id)
        .outerjoin(receiver, _IS_DOWN)
        .where(waiting | failed)
        .group_by(c.kind, c.name)
        .order_by(func.min(c.made_at))
    )
    result: list[Undelivered] = []
    for kind, name, waits, failures, since, down_since, next_call_at, said_last in conn.execute(found):
        said = said_last[0] if said_last else None
        result.append(Undelivered(kind, shown(kind, name), waits, failures, since, down_since, next_call_at, said))
    return result


def failed_callbacks(conn: Connection, pipeline: str | None) -> list[int]:
    """Ids of callbacks that failed, oldest first."""
    failed = _where(_callbacks("deadline_id"), _OF_CALLBACK, {"state": CallbackState.FAILED, "pipeline": pipeline})
    return list(conn.execute(failed.order_by(callback.c.deadline_id)).scalars())


def _callbacks(*wanted: str) -> Select[Any]:
    columns = (_OF_CALLBACK[name].label(name) for name in wanted)
    found = select(*columns).outerjoin_from(callback, deadline, deadline.c.id == callback.c.deadline_id)
    return found.outerjoin(receiver, _IS_DOWN) if "receiver_down_since" in wanted else found


def _where(
    found: Select[Any], columns: Mapping[str, ColumnElement[Any]], filters: Mapping[str, str | int | None]
) -> Select[Any]:
    return found.where(*(columns[name] == wanted for name, wanted in filters.items() if wanted is not None))
