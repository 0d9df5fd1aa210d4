"""Queries for claims: occupied slots, backfills that could use a free one, and the next runs.

The statements read only live attempts and runs about to start, however many backfills wait for a
slot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zlib import crc32

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    FromClause,
    Integer,
    Interval,
    Select,
    Text,
    and_,
    bindparam,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    true,
    union_all,
)

from retrofill_core.domain.backfill import BackfillState, OnRunFailure
from retrofill_core.domain.run import RunState
from retrofill_core.store.conditions import failed_since_resume
from retrofill_core.store.giving_way import defined, last_served, live_attempt, number_live
from retrofill_core.store.rows import Run, columns_of, present
from retrofill_core.store.runs import COLUMNS, anything_to_publish, due_to_publish, waiting_to_publish
from retrofill_core.store.sql import Arrays, constant, in_state, none_of, one_of
from retrofill_core.store.tables import attempt, backfill, pipeline, run


@dataclass
class Taken:
    """A pipeline's live attempts, and the slots that they hold: the pipeline's, and those of their backfills."""

    attempts: set[int] = field(default_factory=set)
    pipeline_slots: set[int] = field(default_factory=set)
    of_backfills: dict[str, set[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claimant:
    """A backfill with a run that may start now. It may be at its own limit.

    ``since``: when its last attempt ended or, if it is live, was claimed; or the backfill was requested. ``suspects``:
    one of these runs is to be retried alone.
    """

    id: str
    pipeline_no: int
    shard: int
    max_active_runs: int
    since: datetime
    suspects: bool


_LOCK_PIPELINES = (
    select(pipeline.c.no, pipeline.c.max_active_runs, func.clock_timestamp().label("now"))
    .where(one_of(pipeline.c.no, "numbers"))
    .order_by(pipeline.c.no)
    .with_for_update(key_share=True, skip_locked=True)
)
_TAKEN = select(
    *(attempt.c.id, attempt.c.pipeline_no, attempt.c.backfill_id, attempt.c.slot, attempt.c.pipeline_slot)
).where(one_of(attempt.c.pipeline_no, "numbers"), attempt.c.pipeline_slot.is_not(None))


def lock_pipelines(conn: Connection, numbers: Collection[int]) -> tuple[dict[int, int], datetime | None]:
    """``max_active_runs`` by pipeline number, the rows locked, and the time. Locked ones are skipped."""
    rows = conn.execute(_LOCK_PIPELINES, {"numbers": sorted(numbers)}).all()
    return {row.no: row.max_active_runs for row in rows}, max((row.now for row in rows), default=None)


def taken_slots(conn: Connection, numbers: Collection[int]) -> dict[int, Taken]:
    """Occupied slots by pipeline number. The caller holds the pipelines' locks."""
    found = {no: Taken() for no in numbers}
    for row in conn.execute(_TAKEN, {"numbers": sorted(numbers)}):
        taken = found[row.pipeline_no]
        taken.attempts.add(row.id)
        taken.pipeline_slots.add(row.pipeline_slot)
        taken.of_backfills.setdefault(row.backfill_id, set()).add(row.slot)
    return found


_MOST = Arrays("given", no=BigInteger, most=Integer)


def claimants(
    conn: Connection,
    shard: int,
    most: Mapping[int, int],
    with_live_attempts: Collection[str],
    unusable: Collection[str] = (),
) -> dict[str, Claimant]:
    """Backfills that could use a free slot, by id: ``with_live_attempts``, and some without any.

    Of the latter, each pipeline gets up to ``most`` (by its number) of ``shard``, in the order they
    were requested, and as many of lower and of higher shards, the nearest ones: enough to compare.
    The ``unusable`` are not among these.
    """
    given = _MOST.values(no=most, most=most.values())
    more = {"shard": shard, "with_live_attempts": sorted(with_live_attempts), "unusable": sorted(unusable)}
    return {row[0]: Claimant(*row) for row in conn.execute(_CLAIMANTS, given | more)}


def _claimants() -> CompoundSelect[Any]:
    idle = _claimable().where(backfill.c.pipeline_no == _MOST.c.no, none_of(backfill.c.id, "unusable"), ~_live())
    mine = (
        idle.where(backfill.c.shard == bindparam("shard"))
        .order_by(backfill.c.requested_at)
        .limit(_MOST.c.most)
        .lateral("mine")
    )
    others = idle.limit(_MOST.c.most)
    shard = backfill.c.shard
    lower = others.where(shard < bindparam("shard")).order_by(shard.desc()).lateral("lower")
    higher = others.where(shard > bindparam("shard")).order_by(shard).lateral("higher")
    return union_all(
        *(select(each).select_from(_MOST.table).join(each, true()) for each in (mine, lower, higher)),
        _claimable().where(one_of(backfill.c.id, "with_live_attempts")),
    )


_SUSPECT = and_(in_state(run, RunState.QUEUED), run.c.lost_at.is_not(None))
_NO_SUSPECT = and_(in_state(run, RunState.QUEUED), run.c.lost_at.is_(None))
# So long after a suspect's end, its server is left to the suspects of the backfill whose turn it is. One that does not take
# it (no seat is free, its shard has no owner) holds the others up for no longer.
TURN = timedelta(seconds=5)
_other = backfill.alias("other_with_suspects")
_turn = attempt.alias("turn")


def _server(of: FromClause = backfill) -> ColumnElement[str]:
    """The pool on whose Spark server a backfill's suspects are retried."""
    return defined(of, "pool")


def _last_turn(of: FromClause = backfill) -> ColumnElement[int]:
    """The last attempt with suspects of a backfill, which grows with each turn. 0: it had none."""
    turns = select(func.max(_turn.c.id)).where(_turn.c.backfill_id == of.c.id, _turn.c.suspect_server.is_not(None))
    return func.coalesce(turns.correlate_except(_turn).scalar_subquery(), 0)


_IS_FREE_RECENTLY = exists().where(
    _turn.c.suspect_server == _server(),
    _turn.c.ended_at > func.clock_timestamp() - literal(TURN, Interval),
    # After a step of the clock.
    _turn.c.ended_at <= func.clock_timestamp(),
)


def _turn_of_another() -> ColumnElement[bool]:
    """Whether another backfill that could start a suspect on the server had its last turn earlier, or none."""
    o = _other.c
    return exists().where(
        in_state(_other, BackfillState.RUNNING),
        o.id != backfill.c.id,
        defined(_other, "executor") == constant("pool"),
        _server(_other) == _server(),
        _has(_SUSPECT, _other),
        _last_turn(_other) < _last_turn(),
        number_live(live_attempt.c.backfill_id == o.id) < o.max_active_runs,
        number_live(live_attempt.c.pipeline_no == o.pipeline_no)
        < select(pipeline.c.max_active_runs).where(pipeline.c.no == o.pipeline_no).scalar_subquery(),
        or_(o.on_run_failure == constant(OnRunFailure.CONTINUE), ~failed_since_resume(_other)),
    )


def _has(queued: ColumnElement[bool], of: FromClause = backfill) -> ColumnElement[bool]:
    """The backfill has such a run.

    Not EXISTS: for that, Postgres may read the queued runs of all backfills at once, even if only one is wanted.
    """
    return select(run.c.id).where(run.c.backfill_id == of.c.id, queued).limit(1).scalar_subquery().is_not(None)


def _suspects_may_start() -> ColumnElement[bool]:
    """Only the warm drivers of a pool share a server, on which one suspect at a time is retried."""
    return or_(
        defined(backfill, "executor") != constant("pool"),
        and_(
            ~exists().where(attempt.c.suspect_server == _server(), attempt.c.slot.is_not(None)),
            ~and_(_IS_FREE_RECENTLY, _turn_of_another()),
        ),
    )


def _claimable() -> Select[Any]:
    """Running backfills with a queued run that may start now and that no failure blocks."""
    b = backfill.c
    others, suspects = _has(_NO_SUSPECT), and_(_has(_SUSPECT), _suspects_may_start())
    since = func.greatest(b.requested_at, last_served()).label("since")
    return select(b.id, b.pipeline_no, b.shard, b.max_active_runs, since, suspects.label("suspects")).where(
        in_state(backfill, BackfillState.RUNNING),
        or_(others, suspects),
        or_(b.on_run_failure == constant(OnRunFailure.CONTINUE), ~failed_since_resume()),
    )


def _live() -> ColumnElement[bool]:
    return exists().where(attempt.c.backfill_id == backfill.c.id, attempt.c.slot.is_not(None))


_CLAIMANTS = _claimants()
_WANTED = Arrays("wanted", number="no", backfill_id=Text, count=Integer)
_NEXT = (
    select(*COLUMNS)
    .where(run.c.backfill_id == _WANTED.c.backfill_id, _NO_SUSPECT)
    .order_by(run.c.position)
    .limit(_WANTED.c.count)
    .lateral("next_run")
)
_LAST = (
    select(func.max(run.c.position).label("last_queued"))
    .where(run.c.backfill_id == _WANTED.c.backfill_id, _NO_SUSPECT)
    .lateral("last_run")
)
_NEXT_QUEUED = (
    select(*columns_of(Run, _NEXT), _LAST.c.last_queued)
    .select_from(_WANTED.table)
    .join(_LAST, true())
    .join(_NEXT, true())
    .order_by(_WANTED.c.no, _NEXT.c.position)
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The next queued runs of a backfill, in start order. ``last``: the position of its last one."""

    runs: list[Run]
    last: int


def next_queued(conn: Connection, wanted: Mapping[str, int]) -> dict[str, Waiting]:
    """The next queued runs by backfill, at most as many as ``wanted`` of each, without suspects."""
    found: dict[str, Waiting] = {}
    for *row, last in conn.execute(_NEXT_QUEUED, _WANTED.values(backfill_id=wanted, count=wanted.values())):
        each = Run(*row)
        found.setdefault(each.backfill_id, Waiting([], last)).runs.append(each)
    return found


# First key of the advisory locks of servers on which a suspect starts.
SUSPECTS_LOCK = 0x52465355
_LOCK_SUSPECTS = text("SELECT pg_try_advisory_xact_lock(:space, :no)")
_NEXT_SUSPECT = (
    select(*COLUMNS)
    .where(run.c.backfill_id == _WANTED.c.backfill_id, _SUSPECT)
    .order_by(run.c.lost_at, run.c.position)
    .limit(_WANTED.c.count)
    .lateral("next_suspect")
)


def _next_suspects() -> Select[Any]:
    return (
        select(*columns_of(Run, _NEXT_SUSPECT))
        .select_from(_WANTED.table.join(backfill, backfill.c.id == _WANTED.c.backfill_id).join(_NEXT_SUSPECT, true()))
        .where(_suspects_may_start())
        .order_by(_last_turn(), _NEXT_SUSPECT.c.lost_at, _NEXT_SUSPECT.c.position)
    )


_NEXT_SUSPECTS = _next_suspects()
_SHARDS_SUSPECTS = select(backfill.c.pipeline_no).where(
    backfill.c.shard == bindparam("shard"),
    in_state(backfill, BackfillState.RUNNING),
    exists().where(run.c.backfill_id == backfill.c.id, _SUSPECT),
)


def lock_suspects(conn: Connection, pool: str) -> bool:
    """Whether no other transaction is about to start a suspect on the server of ``pool``.

    Instead of waiting for that transaction at the unique index.
    """
    given = {"space": SUSPECTS_LOCK, "no": crc32(pool.encode()) - 2**31}
    return bool(conn.execute(_LOCK_SUSPECTS, given).scalar_one())


def next_suspects(conn: Connection, wanted: Mapping[str, int]) -> dict[str, list[Run]]:
    """The suspects that may start now by backfill, oldest loss first, like ``next_queued``.

    The first backfill is the one that had its turn longest ago; of those that had none, the one with the oldest loss. Call
    it after ``lock_suspects``, which makes what it reads of the pool's server stay true.
    """
    found: dict[str, list[Run]] = {}
    for row in conn.execute(_NEXT_SUSPECTS, _WANTED.values(backfill_id=wanted, count=wanted.values())):
        each = Run(*row)
        found.setdefault(each.backfill_id, []).append(each)
    return found


def pipelines_with_suspects(conn: Connection, shard: int) -> set[int]:
    """Numbers of the pipelines that have queued suspects in a shard."""
    return set(conn.execute(_SHARDS_SUSPECTS, {"shard": shard}).scalars())


_BELOW = Arrays("to_publish", backfill_id=Text, below=Integer)
_TO_PUBLISH = Arrays("to_publish", backfill_id=Text, count=Integer, below=Integer)
_ANYTHING_TO_PUBLISH = select(_BELOW.c.backfill_id).where(anything_to_publish(_BELOW.c.backfill_id, _BELOW.c.below))


def to_publish(conn: Connection, below: Mapping[str, int]) -> set[str]:
    """Those of these backfills that have accepted runs that may have a publisher, now or once their attempt is over.

    ``below``: by id, the review than which theirs must be lower (``Backfill.publishes_below``).
    """
    below = {id: review for id, review in below.items() if review > 0}
    given = _BELOW.values(backfill_id=below, below=below.values())
    return set(conn.execute(_ANYTHING_TO_PUBLISH, given).scalars()) if below else set()


def _next_accepted() -> CompoundSelect[Any]:
    new, again = (
        each.where(none_of(run.c.accepted_attempt, "live"))
        .limit(_TO_PUBLISH.c.count)
        .correlate(_TO_PUBLISH.table)
        .lateral(name)
        for each, name in zip(
            waiting_to_publish(_TO_PUBLISH.c.backfill_id, _TO_PUBLISH.c.below, run.c.accepted_attempt),
            ("new", "again"),
            strict=True,
        )
    )
    return union_all(*(select(each).select_from(_TO_PUBLISH.table).join(each, true()) for each in (new, again)))


_NEXT_ACCEPTED = _next_accepted()
_STAGED_BY = (
    select(*COLUMNS, attempt.c.code)
    .select_from(run.outerjoin(attempt, attempt.c.id == run.c.accepted_attempt))
    .where(one_of(run.c.accepted_attempt, "attempts"), in_state(run, RunState.STAGED), due_to_publish())
    .order_by(run.c.position)
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """Runs whose output one attempt staged, or several that had the same code.

    ``code``: where that is (``CodeLocation``), if known.
    """

    runs: list[Run]
    code: dict[str, Any] | None


def staged(conn: Connection, wanted: Mapping[str, tuple[int, int]], live: Collection[int]) -> dict[str, list[Accepted]]:
    """Accepted runs that may have a publisher now by backfill, those of each attempt together, in start order.

    ``wanted``: how many runs of each backfill to look for (and with them come all of the same attempts), and below which
    review (``Backfill.publishes_below``). ``live``: the attempts of these backfills that are not over: until then, their
    own drivers publish, and more of their runs may be accepted.
    """
    counts, below = zip(*wanted.values(), strict=True)
    given = _TO_PUBLISH.values(backfill_id=wanted, count=counts, below=below) | {"live": sorted(live)}
    attempts = set(conn.execute(_NEXT_ACCEPTED, given).scalars())
    found: dict[str, dict[int, Accepted]] = {}
    for *row, code in conn.execute(_STAGED_BY, {"attempts": sorted(attempts)}) if attempts else ():
        each = Run(*row)
        if each.review < wanted[each.backfill_id][1]:
            mine = found.setdefault(each.backfill_id, {})
            mine.setdefault(present(each.accepted_attempt), Accepted([], code)).runs.append(each)
    return {id: [*mine.values()] for id, mine in found.items()}
