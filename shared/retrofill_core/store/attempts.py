"""Attempt rows: locks, leases, permissions. Every state changes through ``transition``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Double,
    Integer,
    Interval,
    Select,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)

from retrofill.states import ATTEMPT_MACHINE, LIVE, AttemptOutcome, AttemptState
from retrofill_core.domain.backfill import BackfillState, OnRunFailure
from retrofill_core.domain.run import RunState
from retrofill_core.store.conditions import failed_since_resume
from retrofill_core.store.giving_way import GIVES_WAY
from retrofill_core.store.rows import Attempt, columns_of
from retrofill_core.store.sql import Arrays, constant, in_state, one_of
from retrofill_core.store.tables import Moment, attempt, backfill, run, seat
from retrofill_core.store.transition import Values, transition

# Notifications: of an attempt, that something about it changed.
ATTEMPT_CHANNEL = "retrofill_attempt"
NOT_LIVE: dict[str, Any] = {"slot": None, "pipeline_slot": None, "lease_until": None}


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """An attempt to insert, with the runs from ``position`` on, in a free seat that is locked."""

    backfill_id: str
    pipeline_no: int
    mode: str
    position: int
    runs: int
    slot: int
    pipeline_slot: int
    code: dict[str, Any]
    host: str
    host_id: int
    seat: int
    suspect_server: str | None = None


_NEW = Arrays(
    "given",
    backfill_id=Text,
    pipeline_no=BigInteger,
    mode=Text,
    position=Integer,
    runs=Integer,
    slot=Integer,
    pipeline_slot=Integer,
    code=attempt.c.code.type,
    host=Text,
    host_id=BigInteger,
    seat=Integer,
    suspect_server=Text,
)
_COLUMNS = [column for column in _NEW.c if column.name != "seat"]
_SAME = {
    "state": constant(AttemptState.STARTING),
    "lease_until": bindparam("new_until", type_=Moment),
    "lease_seconds": bindparam("new_seconds", type_=Double),
}
_INSERTED = (
    insert(attempt)
    .from_select([*(column.name for column in _COLUMNS), *_SAME], select(*_COLUMNS, *_SAME.values()))
    .returning(attempt.c.id, attempt.c.backfill_id, attempt.c.slot)
    .cte("inserted")
)
# One statement: it is on the way between two runs.
_INSERT = (
    update(seat)
    .where(
        # A backfill's slots are unique.
        *(_INSERTED.c.backfill_id == _NEW.c.backfill_id, _INSERTED.c.slot == _NEW.c.slot),
        *(seat.c.host_id == _NEW.c.host_id, seat.c.no == _NEW.c.seat, seat.c.attempt_id.is_(None)),
    )
    .values(
        attempt_id=_INSERTED.c.id,
        acknowledged_at=case((one_of(seat.c.host_id, "own"), func.clock_timestamp())),
    )
    .returning(_INSERTED.c.id, _INSERTED.c.backfill_id, _INSERTED.c.slot)
)


def insert_all(
    conn: Connection, new: Sequence[NewAttempt], own: Collection[int], lease_until: datetime, lease_seconds: float
) -> list[int]:
    """Insert live attempts and take their seats; returns their ids, in order.

    Those of hosts ``own`` are acknowledged. One whose seat is not free any more has no id.
    """
    given = _NEW.values(**{field.name: [getattr(one, field.name) for one in new] for field in fields(NewAttempt)})
    more = {"own": sorted(own), "new_until": lease_until, "new_seconds": lease_seconds}
    rows = conn.execute(_INSERT, {**given, **more})
    ids = {(row.backfill_id, row.slot): row.id for row in rows}
    return [ids[key] for one in new if (key := (one.backfill_id, one.slot)) in ids]


COLUMNS = columns_of(Attempt, attempt)
_LOCK = select(*COLUMNS).where(one_of(attempt.c.id, "ids")).order_by(attempt.c.id).with_for_update(key_share=True)


def lock(conn: Connection, ids: Collection[int]) -> dict[int, Attempt]:
    """Attempts by id, locked in id order."""
    return {row[0]: Attempt(*row) for row in conn.execute(_LOCK, {"ids": sorted(ids)})}


def move(
    conn: Connection,
    to: str,
    rows: Sequence[Values],
    values: Mapping[str, Any],
    from_states: Sequence[str] | None = None,
) -> int:
    """Move attempts (``id`` and columns to set); how many landed."""
    return len(transition(conn, ATTEMPT_MACHINE, attempt, to, rows, from_states=from_states, values=values))


# leases


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of a live attempt; a heartbeat extends it by ``seconds``.

    ``times_out_at``: when the first of its runs times out that is not marked as timed out.
    """

    attempt_id: int
    until: datetime
    seconds: float
    times_out_at: datetime | None


_OF_SHARD = and_(backfill.c.id == attempt.c.backfill_id, backfill.c.shard == bindparam("shard"))
_TIMES_OUT_AT = (
    select(func.min(run.c.times_out_at))
    .where(run.c.attempt_id == attempt.c.id, in_state(run, RunState.RUNNING), run.c.error.is_(None))
    .scalar_subquery()
)
_LEASES = (
    select(attempt.c.id, attempt.c.lease_until, attempt.c.lease_seconds, _TIMES_OUT_AT.label("times_out_at"))
    .select_from(attempt.join(backfill, _OF_SHARD))
    .where(attempt.c.slot.is_not(None))
)
_RENEWED = Arrays("given", id=BigInteger, until=Moment)
_EXTEND = (
    update(attempt)
    .where(attempt.c.id == _RENEWED.c.id, attempt.c.slot.is_not(None))
    .values(lease_until=_RENEWED.c.until)
)
_ACKNOWLEDGED = exists().where(
    seat.c.attempt_id == attempt.c.id, one_of(seat.c.host_id, "own"), seat.c.acknowledged_at.is_not(None)
)
_BEATING = (
    select(attempt.c.id)
    .where(one_of(attempt.c.id, "ids"), attempt.c.slot.is_not(None), _ACKNOWLEDGED)
    # One that its owner is about to end is left alone.
    .with_for_update(key_share=True, skip_locked=True)
    .cte("beating")
)
_RENEW = (
    update(attempt)
    .where(attempt.c.id == _BEATING.c.id)
    # By the attempt's own length, by which its driver ends itself.
    .values(lease_until=func.clock_timestamp() + attempt.c.lease_seconds * literal(timedelta(seconds=1), Interval))
    .returning(attempt.c.id)
)
_CANCEL = (
    update(attempt)
    .where(
        attempt.c.backfill_id == bindparam("backfill"),
        attempt.c.slot.is_not(None),
        attempt.c.cancel_requested.is_(False),
    )
    .values(cancel_requested=True)
    .returning(attempt.c.id)
)


def leases(conn: Connection, shard: int) -> list[Lease]:
    """Leases of a shard's live attempts."""
    return [Lease(*row) for row in conn.execute(_LEASES, {"shard": shard})]


def extend_leases(conn: Connection, until: Mapping[int, datetime]) -> None:
    """Extend leases, by attempt id. Attempts that are no longer live are left alone."""
    if until:
        ids = sorted(until)
        conn.execute(_EXTEND, _RENEWED.values(id=ids, until=(until[id] for id in ids)))


def renew(conn: Connection, ids: Collection[int], own: Collection[int]) -> list[int]:
    """Renew the leases of live attempts that hosts ``own`` have acknowledged; returns their ids.

    For hosts whose drivers are alive while Kafka is away. An attempt that is locked, or over, keeps its lease.
    """
    return list(conn.execute(_RENEW, {"ids": sorted(ids), "own": sorted(own)}).scalars())


_RELEASE = update(attempt).where(one_of(attempt.c.id, "ids")).values(release_requested=True)


def mark_release_requested(conn: Connection, ids: Collection[int]) -> None:
    """Request the end of these attempts, which are live and locked."""
    conn.execute(_RELEASE, {"ids": sorted(ids)})


def mark_cancel_requested(conn: Connection, backfill_id: str) -> list[int]:
    """Request the end of a backfill's live attempts; returns the ids of those newly requested."""
    return list(conn.execute(_CANCEL, {"backfill": backfill_id}).scalars())


# drivers


_WORKS = exists().where(run.c.attempt_id == attempt.c.id, in_state(run, RunState.STARTING, RunState.RUNNING))
_GOING = and_(attempt.c.cancel_requested.is_(False), attempt.c.release_requested.is_(False))
_NOT_CANCELLED = or_(_GOING, ~_WORKS)
_GOES_ON = or_(attempt.c.outcome == constant(AttemptOutcome.DONE), and_(in_state(attempt, *LIVE), _NOT_CANCELLED))


def _lease_left() -> Select[Any]:
    may_begin = and_(
        _GOING,
        in_state(run, RunState.STARTING),
        in_state(backfill, BackfillState.RUNNING),
        or_(backfill.c.on_run_failure == constant(OnRunFailure.CONTINUE), ~failed_since_resume()),
        # Null before its first run has begun.
        GIVES_WAY.is_not(true()),
    )
    return (
        select(func.extract("epoch", attempt.c.lease_until - func.clock_timestamp()))
        .select_from(
            attempt.join(run, run.c.attempt_id == attempt.c.id).join(backfill, backfill.c.id == run.c.backfill_id)
        )
        .where(
            attempt.c.id == bindparam("attempt"),
            run.c.id == bindparam("run"),
            attempt.c.slot.is_not(None),
            or_(in_state(run, RunState.PUBLISHING), may_begin),
        )
    )


_LEASE_LEFT = _lease_left()
_PUBLISHER = select(run.c.attempt_id, run.c.state).where(one_of(run.c.id, "runs"))
_HOSTED = select(attempt.c.id).where(one_of(attempt.c.id, "ids"), _GOES_ON)


def lease_left(conn: Connection, attempt_id: int, run_id: int) -> float | None:
    """Seconds left of the lease of a live attempt that may begin this run of it.

    ``None``: the attempt is over or does not have the run, or the run must not begin: its backfill
    is not running, a failed run holds it, the attempt is to end, or gives way to another backfill. A publication may begin in any
    case. 0 or less: the lease looks ended, which the clock alone does not prove, as it may have been
    set: a heartbeat renews the lease, or the attempt ends.
    """
    seconds = conn.execute(_LEASE_LEFT, {"attempt": attempt_id, "run": run_id}).scalar_one_or_none()
    return None if seconds is None else float(seconds)


def accepted(conn: Connection, attempt_id: int, run_ids: Collection[int]) -> bool | None:
    """Whether the attempt's driver publishes the staged output of all these runs; ``None`` while undecided."""
    rows = conn.execute(_PUBLISHER, {"runs": sorted(run_ids)}).all()
    if len(rows) < len(run_ids) or any(row.attempt_id != attempt_id for row in rows):
        return False
    if any(row.state in (RunState.STARTING, RunState.RUNNING) for row in rows):
        return None
    return all(row.state == RunState.PUBLISHING for row in rows)


def to_be_ended(conn: Connection, hosted: Collection[int]) -> list[int]:
    """Those attempts that are no longer live, or are to be cancelled or released.

    Of one whose driver reported its end, the driver is about to be free. One that only publishes is
    not cancelled.
    """
    good = set(conn.execute(_HOSTED, {"ids": list(hosted)}).scalars())
    return [id for id in hosted if id not in good]
