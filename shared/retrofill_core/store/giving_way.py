"""Decides whether a batch gives its seat and slots to another backfill that waits: asked with the permission for each next run.

Only if the seat goes to that backfill by fair sharing (``Rank``), which then has fewer live attempts: the batch that gives
way is served last, so it comes after others with as many.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    DateTime,
    FromClause,
    Integer,
    Interval,
    Text,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import insert as upsert

from retrofill_core.domain.backfill import BackfillState, OnRunFailure
from retrofill_core.domain.run import RunState
from retrofill_core.store.conditions import failed_since_resume
from retrofill_core.store.sql import constant, in_state
from retrofill_core.store.tables import attempt, backfill, host, pipeline, run, seat, seat_wait


class SeatKind(NamedTuple):
    """The seats that a backfill can use: of a pool, for spark-submit or with a warm driver."""

    pool: str
    submits: bool


class Rank(NamedTuple):
    """Who gets a free seat: the backfill with the fewest live attempts, then the one that waits longest."""

    live: int
    since: datetime


_WAITS = {
    "live": bindparam("fewest", type_=Integer),
    "since": bindparam("waits_since", type_=DateTime(timezone=True)),
    "until": func.clock_timestamp() + bindparam("seconds", type_=Interval),
}
_SUBMITS = bindparam("by_submit", type_=Boolean)
_WAIT = (
    upsert(seat_wait)
    .values(shard=bindparam("ours"), pool=bindparam("of_pool"), submits=_SUBMITS, **_WAITS)
    .on_conflict_do_update(index_elements=[seat_wait.c.shard, seat_wait.c.pool, seat_wait.c.submits], set_=_WAITS)
)
_WAIT_NO_MORE = delete(seat_wait).where(
    seat_wait.c.shard == bindparam("ours"), seat_wait.c.pool == bindparam("of_pool"), seat_wait.c.submits == _SUBMITS
)


def wait_for_seat(conn: Connection, shard: int, kind: SeatKind, first: Rank, seconds: float) -> None:
    """For so long, others leave a seat of this kind to this shard's ``first`` backfill that waits for one."""
    given: dict[str, object] = {"ours": shard, "of_pool": kind.pool, "by_submit": kind.submits}
    given |= {"fewest": first.live, "waits_since": first.since, "seconds": timedelta(seconds=seconds)}
    conn.execute(_WAIT, given)


def wait_for_no_seat(conn: Connection, shard: int, kind: SeatKind) -> None:
    conn.execute(_WAIT_NO_MORE, {"ours": shard, "of_pool": kind.pool, "by_submit": kind.submits})


# A batch keeps its seat for at least so long. What follows in the seat opens a session, which takes up to half a second
# in a warm driver and about 12 s by spark-submit: at most a tenth or a sixth of the time goes into turns.
SLICE, SLICE_OF_SUBMIT = timedelta(seconds=5), timedelta(seconds=60)
# Other shards leave their seats only to who has waited for so long: to others, giving way would be in vain.
WAITED = timedelta(seconds=1)

_others = backfill.alias("other_backfill")
_queued = run.alias("queued_run")
_newest = attempt.alias("newest_attempt")
live_attempt = attempt.alias("live_attempt")


def last_served(of: FromClause = backfill) -> ColumnElement[object]:
    """When the newest attempt of a backfill ended or, if it is live, was claimed."""
    return (
        select(func.coalesce(_newest.c.ended_at, _newest.c.claimed_at))
        .where(_newest.c.backfill_id == of.c.id)
        .order_by(_newest.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )


def number_live(which: ColumnElement[bool]) -> ColumnElement[int]:
    """How many live attempts there are of which ``which``, a condition on ``live_attempt``, holds."""
    found = select(func.count()).select_from(live_attempt).where(which, live_attempt.c.slot.is_not(None))
    # The statement is further out than the next one, which is as far as SQLAlchemy looks by itself.
    return found.correlate_except(live_attempt).scalar_subquery()


def defined(of: FromClause, name: str) -> ColumnElement[str]:
    """A field of a backfill's definition."""
    return of.c.definition.op("->>", return_type=Text())(constant(name))


def _ago(seconds: timedelta | ColumnElement[timedelta]) -> ColumnElement[object]:
    span = literal(seconds, Interval) if isinstance(seconds, timedelta) else seconds
    return func.clock_timestamp() - span


_MINE = number_live(live_attempt.c.backfill_id == attempt.c.backfill_id)


def _fewer(live: ColumnElement[int]) -> ColumnElement[bool]:
    """One with so many live attempts goes first, also after the next turn: so they do not take turns for an odd seat."""
    return or_(live <= 0, live + 1 < _MINE)


_WARM = constant("pool")
_HAD_ITS_TIME = attempt.c.began_at <= _ago(
    case(
        (defined(backfill, "executor") == _WARM, literal(SLICE, Interval)),
        else_=literal(SLICE_OF_SUBMIT, Interval),
    )
)
_WAITS_FOR_THE_SEAT = exists().where(
    seat.c.attempt_id == attempt.c.id,
    host.c.id == seat.c.host_id,
    seat_wait.c.pool == host.c.pool,
    seat_wait.c.until > func.clock_timestamp(),
    seat_wait.c.since <= _ago(WAITED),
    _fewer(seat_wait.c.live),
    # It can use this seat. A cold one becomes warm, if the host's drivers start.
    case((seat_wait.c.submits, host.c.submits), else_=or_(seat.c.warm, host.c.note.is_(None))),
)
_LIVE_OTHER = number_live(live_attempt.c.backfill_id == _others.c.id)
_WAITS_FOR_THE_SLOT = and_(
    number_live(live_attempt.c.pipeline_no == attempt.c.pipeline_no)
    >= select(pipeline.c.max_active_runs).where(pipeline.c.no == attempt.c.pipeline_no).scalar_subquery(),
    exists().where(
        _others.c.pipeline_no == attempt.c.pipeline_no,
        _others.c.id != attempt.c.backfill_id,
        in_state(_others, BackfillState.RUNNING),
        func.greatest(_others.c.requested_at, last_served(_others)) <= _ago(WAITED),
        _fewer(_LIVE_OTHER),
        _others.c.max_active_runs > _LIVE_OTHER,
        # It can use this attempt's seat.
        defined(_others, "executor") == defined(backfill, "executor"),
        defined(_others, "pool") == defined(backfill, "pool"),
        select(_queued.c.id)
        .where(_queued.c.backfill_id == _others.c.id, in_state(_queued, RunState.QUEUED), _queued.c.lost_at.is_(None))
        .limit(1)
        .scalar_subquery()
        .is_not(None),
        or_(_others.c.on_run_failure == constant(OnRunFailure.CONTINUE), ~failed_since_resume(_others)),
    ),
)
# A condition on ``attempt`` and its ``backfill``.
GIVES_WAY = and_(_HAD_ITS_TIME, or_(_WAITS_FOR_THE_SEAT, _WAITS_FOR_THE_SLOT))
