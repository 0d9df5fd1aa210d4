"""Webhooks and topics that are down: one callback probes each, and the others wait for its result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Integer, Interval, Text, bindparam, case, delete, func, select, true, update
from sqlalchemy.dialects.postgresql import insert

from retrofill_core.domain.callback import CallbackState
from retrofill_core.store.callbacks import CALLS_A_FUNCTION, WAITS, Due
from retrofill_core.store.rows import columns_of
from retrofill_core.store.sql import in_state, one_of
from retrofill_core.store.tables import Moment, callback, receiver

S = CallbackState
_c, _r = callback.c, receiver.c
_NOW = func.clock_timestamp(type_=Moment)
_ONCE = select(_NOW).scalar_subquery()
_NAME = _r.name == bindparam("given", type_=Text)
# An outage is a new one if nobody has probed for as long after the moment to do so: nothing waited, or no runner was there.
STALE = timedelta(minutes=5)
# Two runners may both have seen a probe due: the second finds it moved.
_PROBING = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Down:
    """A receiver that is down, and the callback of a shard that may probe it. ``probing``: another one does now."""

    name: str
    deadline_id: int
    pipeline: str
    ready_at: datetime
    probing: bool
    ready: bool

    @property
    def due(self) -> Due:
        return Due(self.deadline_id, self.pipeline, self.ready_at)


@dataclass(frozen=True, slots=True)
class Outage:
    """Since when a receiver has been down, and its last error."""

    down_since: datetime
    last_error: str


_prober = callback.alias("prober")
_PROBED = (
    select(_prober.c.deadline_id)
    .where(_prober.c.deadline_id == _r.probe_id, in_state(_prober, S.RUNNING))
    .correlate(receiver)
    .exists()
)
_FIRST = (
    select(_c.deadline_id, _c.pipeline, _c.next_try_at)
    .where(_c.name == _r.name, ~CALLS_A_FUNCTION, WAITS)
    .correlate(receiver)
    .order_by(_c.next_try_at, _c.deadline_id)
    .limit(1)
    .lateral("first")
)
_READY_AT = func.greatest(_FIRST.c.next_try_at, _r.next_probe_at, type_=Moment)
_WAITING = (
    select(_r.name, _FIRST.c.deadline_id, _FIRST.c.pipeline, _READY_AT.label("ready_at"), _PROBED.label("probing"))
    .add_columns((_READY_AT <= _ONCE).label("ready"))
    .select_from(receiver.join(_FIRST, true()))
    .order_by(_r.name)
)


def waiting(conn: Connection, shard: int, set_aside: Collection[int] = ()) -> list[Down]:
    """The receivers that are down for which callbacks of the shard wait."""
    return [Down(*row) for row in conn.execute(_WAITING, {"shard": shard, "set_aside": sorted(set_aside)})]


_WAITED = func.greatest(_c.due_at, _r.down_since, type_=Moment) <= _ONCE - bindparam("patience", type_=Interval)
_EXPIRED = (
    select(_c.deadline_id, _c.pipeline, _c.due_at, *columns_of(Outage, receiver))
    .join_from(receiver, callback, _c.name == _r.name)
    # Its last probe has failed just now, so the receiver and not this service was away.
    .where(~CALLS_A_FUNCTION, _WAITED, _r.next_probe_at > _ONCE, ~_PROBED, WAITS)
    .order_by(_c.due_at, _c.deadline_id)
    .limit(bindparam("limit", type_=Integer))
)


def expired(
    conn: Connection, shard: int, patience_seconds: float, limit: int, set_aside: Collection[int] = ()
) -> list[tuple[Due, Outage]]:
    """Callbacks of the shard that have waited for as long for a receiver that was down all the time, oldest first."""
    given = {"patience": timedelta(seconds=patience_seconds), "limit": limit, "set_aside": sorted(set_aside)}
    return [(Due(*row[:3]), Outage(*row[3:])) for row in conn.execute(_EXPIRED, {"shard": shard, **given})]


_LOCK = (
    select(_r.name)
    .where(one_of(_r.name, "names"), _r.next_probe_at <= _ONCE, ~_PROBED)
    .order_by(_r.name)
    .with_for_update(skip_locked=True, of=receiver)
)


def lock_to_probe(conn: Connection, names: Collection[str]) -> set[str]:
    """Those of the receivers that may be probed now, locked. Locked ones are skipped."""
    return set(conn.execute(_LOCK, {"names": sorted(names)}).scalars()) if names else set()


_PROBE = (
    update(receiver)
    .where(_NAME)
    .values(probe_id=bindparam("id"), next_probe_at=_NOW + bindparam("later", type_=Interval))
)


def probe(conn: Connection, probes: Mapping[str, int]) -> None:
    """Note which callbacks probe locked receivers."""
    for name, id in probes.items():
        conn.execute(_PROBE, {"given": name, "id": id, "later": _PROBING})


_TRIES = select(_r.tries, _r.probe_id).where(_NAME).with_for_update()


def tries_of(conn: Connection, name: str) -> tuple[int, int | None] | None:
    """How many calls in a row the receiver did not take, and the last probe; ``None`` if it is not down. Locks the row."""
    row = conn.execute(_TRIES, {"given": name}).first()
    return None if row is None else (row[0], row[1])


_LATER = _NOW + bindparam("later", type_=Interval)
_ERROR = bindparam("error", type_=Text)
_INSERT = (
    insert(receiver)
    .values(name=bindparam("given"), tries=1, next_probe_at=_LATER, last_error=_ERROR)
    .on_conflict_do_nothing()
)
_FAILED = (
    update(receiver)
    .where(_NAME)
    .values(
        tries=bindparam("new_tries", type_=Integer),
        down_since=case((_r.next_probe_at < _ONCE - bindparam("stale", type_=Interval), _NOW), else_=_r.down_since),
        next_probe_at=func.greatest(_r.next_probe_at, _LATER, type_=Moment),
        last_error=_ERROR,
    )
)


def went_down(conn: Connection, name: str, error: str, after_seconds: float) -> None:
    """A receiver did not take a call. It is probed after so many seconds."""
    conn.execute(_INSERT, {"given": name, "error": error, "later": timedelta(seconds=after_seconds)})


def still_down(conn: Connection, name: str, error: str, after_seconds: float, tries: int) -> None:
    """A receiver that is down did not take a call, either."""
    values = {"error": error, "new_tries": tries, "stale": STALE}
    conn.execute(_FAILED, {"given": name, "later": timedelta(seconds=after_seconds), **values})


_UP = delete(receiver).where(_NAME).returning(_r.tries)
_OF_RECEIVER = (_c.name == bindparam("given", type_=Text)) & ~CALLS_A_FUNCTION & in_state(callback, S.PENDING)
_HELD_BACK = (
    select(_c.deadline_id)
    .where(_OF_RECEIVER, _c.attempts > 0, _c.next_try_at > _ONCE)
    .order_by(_c.deadline_id)
    .with_for_update(key_share=True, skip_locked=True)
)
_RELEASE = update(callback).where(one_of(_c.deadline_id, "ids"), in_state(callback, S.PENDING)).values(next_try_at=_NOW)
_SHARDS = select(_c.shard).where(_OF_RECEIVER).group_by(_c.shard).order_by(_c.shard)


def came_up(conn: Connection, name: str) -> list[int]:
    """A receiver took a call. Returns the shards of callbacks that waited for it, which are due.

    Those that have failed wait no longer, either, if nothing else arrived meanwhile: the calls were not to blame.
    """
    tries = conn.execute(_UP, {"given": name}).scalar()
    if tries is None:
        return []
    if tries > 1:
        held_back = list(conn.execute(_HELD_BACK, {"given": name}).scalars())
        conn.execute(_RELEASE, {"ids": held_back})
    return list(conn.execute(_SHARDS, {"given": name}).scalars())
