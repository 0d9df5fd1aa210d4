"""Run rows: locks, leases, publication, cancellation.

Every state changes through ``transition``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, RowMapping, and_, bindparam, func, or_, select, update

from retrofill.domain.run import LIVE, MACHINE, RunState
from retrofill.store.arrays import Arrays, one_of
from retrofill.store.states import in_state
from retrofill.store.tables import Moment, backfill, run
from retrofill.store.transition import Values, transition

RUN_CHANNEL = "retrofill_run"
SLOT_CHANNEL = "retrofill_slot"
_ORPHANED = and_(in_state(run, RunState.PUBLISHING), run.c.host.is_(None))
# Runs whose lease a missing heartbeat ends. A publishing run without a publisher has no heartbeats.
_LEASED = or_(
    in_state(run, RunState.STARTING, RunState.RUNNING),
    and_(in_state(run, RunState.PUBLISHING), run.c.host.is_not(None)),
)
NOT_LIVE: dict[str, Any] = {"slot": None, "pipeline_slot": None, "lease_until": None, "host": None}
_LOCK = select(run).where(one_of(run.c.id, "ids")).order_by(run.c.id).with_for_update(key_share=True)


def lock(conn: Connection, ids: Collection[int]) -> dict[int, RowMapping]:
    """Runs by id, locked in id order."""
    return {row["id"]: row for row in conn.execute(_LOCK, {"ids": sorted(ids)}).mappings()}


def move(
    conn: Connection,
    to: str,
    rows: Sequence[Values],
    values: Mapping[str, Any],
    from_states: Sequence[str] | None = None,
) -> int:
    """Move runs (``id``, ``attempt`` and columns to set), guarded by attempt; how many landed."""
    return len(transition(conn, MACHINE, run, to, rows, guard=["attempt"], from_states=from_states, values=values))


_LEASES = Arrays("given", id=BigInteger, attempt=Integer, until=Moment)
_EXTEND = (
    update(run)
    .where(run.c.id == _LEASES.c.id, run.c.attempt == _LEASES.c.attempt, in_state(run, *LIVE))
    .values(lease_until=_LEASES.c.until)
)


def extend_leases(conn: Connection, until: Mapping[tuple[int, int], datetime]) -> None:
    """Extend leases, by (run id, attempt). Attempts that are no longer live are left alone."""
    if not until:
        return
    pairs = sorted(until)
    ids, attempts = (id for id, _ in pairs), (attempt for _, attempt in pairs)
    conn.execute(_EXTEND, _LEASES.values(id=ids, attempt=attempts, until=(until[pair] for pair in pairs)))


# publishing


@dataclass(frozen=True)
class LostPublisher:
    """A run whose publisher was lost, with the number of its losses and the most recent ones."""

    id: int
    publication: int
    lost_attempts: int
    losses: dict[str, Any]


_LOST = Arrays("given", id=BigInteger, publication=Integer, lost_attempts=Integer, losses=run.c.losses.type)
_ORPHAN = (
    update(run)
    .where(run.c.id == _LOST.c.id, run.c.publication == _LOST.c.publication, in_state(run, RunState.PUBLISHING))
    .values(host=None, lost_attempts=_LOST.c.lost_attempts, losses=_LOST.c.losses)
)


def orphan(conn: Connection, lost: Sequence[LostPublisher]) -> int:
    """Clear the publisher of these runs; how many landed."""
    if not lost:
        return 0
    parameters = _LOST.values(
        id=(one.id for one in lost),
        publication=(one.publication for one in lost),
        lost_attempts=(one.lost_attempts for one in lost),
        losses=(one.losses for one in lost),
    )
    return conn.execute(_ORPHAN, parameters).rowcount


_ORPHANS = (
    select(run.c.id, run.c.backfill_id)
    .where(one_of(run.c.backfill_id, "backfills"), run.c.slot.is_not(None), _ORPHANED)
    .order_by(run.c.id)
)


def orphans(conn: Connection, backfill_ids: Sequence[str]) -> dict[int, str]:
    """Runs of these backfills that have no publisher: backfill id by run id."""
    rows = conn.execute(_ORPHANS, {"backfills": list(backfill_ids)}).all()
    return {row.id: row.backfill_id for row in rows}


_ADOPT = (
    update(run)
    .where(one_of(run.c.id, "ids"), _ORPHANED)
    .values(
        host=bindparam("new_host"),
        lease_until=bindparam("until"),
        lease_seconds=bindparam("seconds"),
        publication=run.c.publication + 1,
    )
    .returning(run)
)


def adopt(
    conn: Connection, ids: Sequence[int], host: str, lease_until: datetime, lease_seconds: float
) -> Sequence[RowMapping]:
    """Make ``host`` the publisher of those runs that have none; returns their updated rows."""
    parameters = {"ids": list(ids), "new_host": host, "until": lease_until, "seconds": lease_seconds}
    return conn.execute(_ADOPT, parameters).mappings().all()


def count_unfinished(conn: Connection) -> dict[str, float]:
    """Number of unfinished runs by state, from small partial indexes."""
    queued = conn.execute(select(func.count()).where(in_state(run, RunState.QUEUED))).scalar_one()
    live = conn.execute(select(run.c.state, func.count()).where(run.c.slot.is_not(None)).group_by(run.c.state)).all()
    return {str(RunState.QUEUED): queued, **{str(state): 0 for state in LIVE}, **{row[0]: row[1] for row in live}}


# leases


@dataclass(frozen=True)
class Lease:
    """The lease of a live run; a heartbeat extends it by ``seconds``, if the claim stored that."""

    run_id: int
    until: datetime
    seconds: float | None


_LIVE_LEASES = (
    select(run.c.id, run.c.lease_until, run.c.lease_seconds)
    .select_from(run.join(backfill, and_(backfill.c.id == run.c.backfill_id, backfill.c.shard == bindparam("shard"))))
    .where(run.c.slot.is_not(None), _LEASED)
)


def leases(conn: Connection, shard: int) -> list[Lease]:
    """Leases of a shard's live runs, except those that wait for a publisher."""
    return [Lease(*row) for row in conn.execute(_LIVE_LEASES, {"shard": shard})]


# cancelling


_REQUEST_CANCEL = (
    update(run)
    .where(run.c.backfill_id == bindparam("backfill"), run.c.slot.is_not(None), run.c.cancel_requested.is_(False))
    .values(cancel_requested=True)
    .returning(run.c.id)
)


def mark_cancel_requested(conn: Connection, backfill_id: str) -> list[int]:
    """Request the cancel of a backfill's live runs; returns the newly requested run ids."""
    return list(conn.execute(_REQUEST_CANCEL, {"backfill": backfill_id}).scalars())


# drivers


_LEASE_LEFT = select(func.extract("epoch", run.c.lease_until - func.clock_timestamp())).where(
    run.c.id == bindparam("id"),
    run.c.attempt == bindparam("attempt"),
    run.c.publication == bindparam("publication"),
    in_state(run, *LIVE),
    run.c.cancel_requested.is_(False) | in_state(run, RunState.PUBLISHING),
    run.c.lease_until.is_not(None),
)
_PUBLISHER = select(run.c.attempt, run.c.publication, run.c.state, run.c.host).where(run.c.id == bindparam("id"))
_HOSTED = select(run.c.id, run.c.attempt, run.c.publication, run.c.state, run.c.cancel_requested).where(
    one_of(run.c.id, "ids")
)


def lease_left(conn: Connection, run_id: int, attempt: int, publication: int) -> float | None:
    """Seconds left of the lease of a live attempt, or of a publication of its output.

    ``None``: the attempt is over, or a cancel was requested, after which user code may not begin,
    but a publication may. 0 or less: the lease looks ended, which the clock alone does not prove,
    as it may have been set: a heartbeat renews the lease, or the attempt ends.
    """
    named = {"id": run_id, "attempt": attempt, "publication": publication}
    seconds = conn.execute(_LEASE_LEFT, named).scalar_one_or_none()
    return None if seconds is None else float(seconds)


def accepted(conn: Connection, run_id: int, attempt: int) -> bool | None:
    """Whether the attempt's own driver publishes what it staged; ``None`` while undecided."""
    row = conn.execute(_PUBLISHER, {"id": run_id}).one_or_none()
    if row is None or row.attempt != attempt:
        return False
    if row.state in (RunState.STARTING, RunState.RUNNING):
        return None
    return row.state == RunState.PUBLISHING and row.publication == 0 and row.host is not None


def to_be_ended(conn: Connection, hosted: Collection[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Those (run id, attempt, publication) that are no longer live or are to be cancelled.

    An attempt that succeeded or failed reported so itself: its driver is about to be free.
    """
    rows = conn.execute(_HOSTED, {"ids": [id for id, _, _ in hosted]}).all()
    goes_on = (RunState.SUCCEEDED, RunState.FAILED, RunState.PUBLISHING)
    good = {
        (row.id, row.attempt, row.publication)
        for row in rows
        if row.state in goes_on or (row.state in LIVE and not row.cancel_requested)
    }
    return [key for key in hosted if key not in good]
