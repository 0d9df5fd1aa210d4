"""Arming deadlines and requesting callbacks: their rows, those of many runs in one statement, and the hints to who handles them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Integer,
    Interval,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert

from retrofill.log import get_log
from retrofill.states import AttemptMode
from retrofill_core.bus import metrics
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.deadlines import CallbackRequested, DeadlineArmed, DeadlineResolved
from retrofill_core.contract.topics import Topic, partition_of, partitions_of
from retrofill_core.domain.callback import CallbackRule, Occasion, options_of, order_key, shown
from retrofill_core.domain.deadline import FIRST, LAST, PAST, Arming, DeadlineAlert, DeadlineState, Due
from retrofill_core.domain.run import RunState
from retrofill_core.domain.templates import expand
from retrofill_core.store import callbacks, listed
from retrofill_core.store.callbacks import NewCallback
from retrofill_core.store.listed import next_ids
from retrofill_core.store.sql import CHUNK, Arrays, constant, in_state
from retrofill_core.store.tables import Moment, attempt, deadline, run


@dataclass(frozen=True)
class Subject:
    """What a deadline is armed for: a run, or the whole backfill if ``run_id`` is ``None``."""

    run_id: int | None
    arming: Arming


@dataclass(frozen=True)
class NewDeadline:
    """An inserted deadline."""

    id: int
    shard: int
    arming: Arming


# The columns that all deadlines of an alert in a backfill share, as parameters.
_SAME = {
    name: bindparam(f"same_{name}", type_=deadline.c[name].type)
    for name in (
        "backfill_id",
        "pipeline",
        "alert",
        "task",
        "reference",
        "interval_seconds",
        "fire_on_failure",
        "digest_seconds",
        "callback",
        "callback_kind",
        "callback_options",
        "kwargs",
    )
}
_NEW = Arrays("given", id=BigInteger, shard=Integer, run_id=BigInteger, due_at=Moment, state=Text, reason=Text)
_DECIDED = case((_NEW.c.state == constant(DeadlineState.VOID), func.clock_timestamp()))
_INSERT = (
    insert(deadline)
    .from_select([*_NEW.c.keys(), *_SAME, "decided_at"], select(*_NEW.c, *_SAME.values(), _DECIDED))
    .on_conflict_do_nothing()
    .returning(deadline.c.id)
)


def insert_deadlines(
    conn: Connection,
    backfill_id: str,
    pipeline: str,
    alert: DeadlineAlert,
    subjects: Sequence[Subject],
    partitions: int,
) -> list[NewDeadline]:
    """Insert a deadline of ``alert`` for each subject without one; returns those inserted."""
    ids = next_ids(conn, len(subjects))
    shards = partitions_of(ids, partitions)
    armings = [subject.arming for subject in subjects]
    given = _NEW.values(
        id=ids,
        shard=shards,
        run_id=(subject.run_id for subject in subjects),
        due_at=(arming.due_at for arming in armings),
        state=(str(arming.state) for arming in armings),
        reason=(arming.reason for arming in armings),
    )
    landed = set(conn.execute(_INSERT, {**given, **_same(backfill_id, pipeline, alert)}).scalars())
    return [NewDeadline(*each) for each in zip(ids, shards, armings, strict=True) if each[0] in landed]


_PLANNED = Arrays("given", number="place", id=BigInteger, shard=Integer)


def insert_planned(
    conn: Connection,
    backfill_id: str,
    pipeline: str,
    alert: DeadlineAlert,
    due: Due,
    first: int,
    ids: Sequence[int],
    partitions: int,
) -> None:
    """Insert a deadline of ``alert`` for the new backfill's runs from position ``first`` on.

    Postgres computes the moments from the runs; only ids and shards are sent.
    """
    given = _PLANNED.c
    columns = ["id", "shard", "run_id", "due_at", "state", "reason", "decided_at"]
    selected = select(given.id, given.shard, run.c.id, *_arming(alert, due), *_SAME.values()).where(
        run.c.backfill_id == backfill_id,
        run.c.position == given.place + (first - 1),
        # Implied by the line above, but without it Postgres reads all runs of the backfill per
        # chunk.
        run.c.position >= first,
        run.c.position < first + len(ids),
    )
    values = _PLANNED.values(id=ids, shard=partitions_of(ids, partitions))
    conn.execute(
        insert(deadline).from_select([*columns, *_SAME], selected),
        {**values, **_same(backfill_id, pipeline, alert)},
    )


def _arming(alert: DeadlineAlert, due: Due) -> tuple[ColumnElement[Any], ...]:
    """``due_at``, ``state``, ``reason`` and ``decided_at``: ``domain.deadline.arm`` in SQL."""
    moment = _moment(due)
    past = and_(moment <= literal(due.now, Moment), literal(not alert.fire_if_past, Boolean))
    return (
        moment,
        case((past, literal(str(DeadlineState.VOID), Text)), else_=literal(str(DeadlineState.ARMED), Text)),
        case((past, literal(PAST, Text)), else_=literal(None, Text)),
        case((past, func.clock_timestamp()), else_=literal(None, Moment)),
    )


def _moment(due: Due) -> ColumnElement[datetime]:
    """``Due.at`` in SQL."""
    if due.fixed is not None:
        return literal(due.fixed, Moment)
    later = run.c.interval_start + literal(due.after, Interval)
    return func.least(func.greatest(later, literal(FIRST, Moment), type_=Moment), literal(LAST, Moment), type_=Moment)


def reserve_ids(conn: Connection, count: int) -> array[int]:
    """``count`` unused ids in ascending order, 8 bytes each."""
    ids = array("q")
    for first, last in conn.execute(text(RESERVE), {"n": count}):
        ids.extend(range(first, last + 1))
    return ids


# As ranges: one, or several if other sessions draw ids at the same time.
RESERVE = """
SELECT min(id) AS first, max(id) AS last FROM (
  SELECT n, nextval(name) AS id FROM generate_series(1, :n) AS n,
    (SELECT CAST(pg_get_serial_sequence('retrofill.deadline', 'id') AS regclass) AS name OFFSET 0) AS once OFFSET 0
) AS drawn GROUP BY id - n ORDER BY first
"""


def _same(backfill_id: str, pipeline: str, alert: DeadlineAlert) -> dict[str, Any]:
    """Values of ``_SAME``."""
    target = alert.callback
    values = {
        "backfill_id": backfill_id,
        "pipeline": pipeline,
        "alert": alert.name,
        "task": alert.task,
        "reference": str(alert.reference),
        "interval_seconds": alert.interval_seconds,
        "fire_on_failure": alert.fire_on_failure,
        "digest_seconds": alert.digest_seconds,
        "callback": None if target is None else target.key,
        "callback_kind": "function" if target is None else target.kind,
        "callback_options": options_of(target, at_most_once=alert.at_most_once),
        "kwargs": alert.kwargs,
    }
    return {f"same_{name}": value for name, value in values.items()}


# The attempt that produced a run's output, which another one may have published.
_PRODUCER = attempt.c.id == func.coalesce(run.c.accepted_attempt, run.c.attempt_id)
# The runs of a range share one span. What was tried in larger ranges before is no part of it.
_RANGED = or_(attempt.c.mode == constant(AttemptMode.RANGE), run.c.range_limit.is_not(None))
_RUNTIMES = (
    select(
        # A review does not count.
        func.coalesce(run.c.staged_at, run.c.finished_at) - case((_RANGED, attempt.c.began_at), else_=run.c.started_at),
        case((attempt.c.mode == constant(AttemptMode.RANGE), attempt.c.runs), else_=1),
    )
    .select_from(run.outerjoin(attempt, _PRODUCER))
    .where(
        run.c.pipeline_no == bindparam("pipeline"),
        in_state(run, RunState.SUCCEEDED),
        run.c.started_at.is_not(None),
        # An undo does not run the pipeline's tasks.
        run.c.restores.is_(None),
    )
    .order_by(run.c.finished_at.desc())
    .limit(bindparam("last", type_=Integer))
)


def last_runtimes(conn: Connection, pipeline_no: int, last_n: int) -> list[timedelta]:
    """Times from first start to success of the pipeline's last successes, latest first.

    Of a run in a range of n: a n-th of the range's.
    """
    return [took / runs for took, runs in conn.execute(_RUNTIMES, {"pipeline": pipeline_no, "last": last_n})]


# The watcher rereads its index at least this often; only deadlines due sooner need a hint.
NEAR_SECONDS = 120.0


@dataclass(frozen=True)
class Armer:
    """Arms deadlines of one backfill."""

    tx: Transaction
    backfill_id: str
    pipeline: str
    partitions: int
    now: datetime

    def arm(self, alert: DeadlineAlert, subjects: Sequence[Subject]) -> None:
        """Insert the deadlines of ``alert``, with a hint for each shard that has one due soon."""
        if not subjects:
            return
        new = insert_deadlines(self.tx.conn, self.backfill_id, self.pipeline, alert, subjects, self.partitions)
        states = Counter(each.arming.state for each in new)
        self.tx.after_commit.append(lambda: _count(alert, states))
        for each in _first_of_each_shard(new, self.now):
            self.tx.emit(Topic.DEADLINES, each.id, DeadlineArmed(deadline_id=each.id, due_at=each.arming.due_at))

    def arm_planned(self, alert: DeadlineAlert, due: Due, starts: Sequence[datetime]) -> None:
        """Arm ``alert`` for all runs of a plan, with logical dates ``starts`` in start order.

        Only ids pass through this process, in chunks; Postgres computes the rows and moments.
        """
        ids = reserve_ids(self.tx.conn, len(starts))
        for first in range(0, len(starts), CHUNK):
            insert_planned(
                self.tx.conn,
                self.backfill_id,
                self.pipeline,
                alert,
                due,
                first,
                ids[first : first + CHUNK],
                self.partitions,
            )
        now = self.now if not alert.fire_if_past else None
        armed = _between(starts, due, now, None)
        states = {DeadlineState.ARMED: len(armed), DeadlineState.VOID: len(starts) - len(armed)}
        self.tx.after_commit.append(lambda: _count(alert, states))
        near = _between(starts, due, now, self.now + timedelta(seconds=NEAR_SECONDS))
        hinted: set[int] = set()
        for place in near:
            shard = partition_of(str(ids[place]), self.partitions)
            if shard not in hinted:
                hinted.add(shard)
                self.tx.emit(
                    Topic.DEADLINES, ids[place], DeadlineArmed(deadline_id=ids[place], due_at=due.at(starts[place]))
                )
            if len(hinted) == self.partitions:
                break


def resolve(tx: Transaction, deadline_ids: Iterable[int]) -> None:
    """Hint to the watcher that what these deadlines watch has ended, so they can be decided now."""
    for each in deadline_ids:
        tx.emit(Topic.DEADLINES, each, DeadlineResolved(deadline_id=each))


def _count(alert: DeadlineAlert, new: Mapping[DeadlineState, int]) -> None:
    for state in (DeadlineState.ARMED, DeadlineState.VOID):
        metrics.DEADLINES_ARMED.labels(alert.reference, state).inc(new.get(state, 0))


def _between(starts: Sequence[datetime], due: Due, after: datetime | None, until: datetime | None) -> range:
    """Positions of runs with deadlines due in (``after``, ``until``], found by bisection."""
    rises = len(starts) < 2 or starts[0] < starts[-1]
    places = range(len(starts)) if rises else range(len(starts) - 1, -1, -1)
    low = 0 if after is None else bisect_right(places, after, key=lambda place: due.at(starts[place]))
    high = len(places) if until is None else bisect_right(places, until, key=lambda place: due.at(starts[place]))
    return places[low : max(low, high)]


def _first_of_each_shard(new: Sequence[NewDeadline], now: datetime) -> Iterable[NewDeadline]:
    """Each shard's earliest near deadline: with one hint, the watcher finds the others."""
    first: dict[int, NewDeadline] = {}
    for each in new:
        if each.arming.state == DeadlineState.ARMED and (each.arming.due_at - now).total_seconds() <= NEAR_SECONDS:
            known = first.get(each.shard)
            if known is None or each.arming.due_at < known.arming.due_at:
                first[each.shard] = each
    return first.values()


log = get_log(__name__)


@dataclass(frozen=True)
class Listed:
    """A callback to insert: that of ``rule``, at ``place`` of the list for ``occasion``.

    Without an ``event``, it is called with what it collects until its window ends.
    """

    rule: CallbackRule
    place: int
    occasion: Occasion
    backfill_id: str
    pipeline: str
    kwargs: Mapping[str, Any]
    event: Mapping[str, Any] = field(default_factory=dict)


def insert_listed(tx: Transaction, calls: Sequence[Listed], now: datetime, partitions: int) -> list[int]:
    """Insert callbacks, with a hint to the runner for each. Returns their ids, in order."""
    if not calls:
        return []
    ids = listed.next_ids(tx.conn, len(calls))
    shards = partitions_of(ids, partitions)
    callbacks.insert_all(tx.conn, [_new(*each, now) for each in zip(calls, ids, shards, strict=True)])
    for id, call in zip(ids, calls, strict=True):
        target = call.rule.callback
        tx.emit(Topic.CALLBACK_REQUESTS, id, CallbackRequested(deadline_id=id, callback=shown(target.kind, target.key)))
    return ids


def expanded(kwargs: Mapping[str, Any], fields: Mapping[str, Any], **about: object) -> dict[str, Any]:
    """Expand templates; if that fails, log it and keep the raw kwargs: the call goes ahead."""
    try:
        return expand(kwargs, fields)
    except ValueError as e:
        log.warning("kwargs_not_expanded", error=str(e), **about)
        return dict(kwargs)


def _new(call: Listed, id: int, shard: int, now: datetime) -> NewCallback:
    collects = not call.event
    target = call.rule.callback
    options = options_of(target, at_most_once=call.rule.at_most_once)
    return NewCallback(
        deadline_id=id,
        shard=shard,
        name=target.key,
        kind=target.kind,
        options=options,
        kwargs=dict(call.kwargs),
        event=dict(call.event),
        pipeline=call.pipeline,
        next_try_at=now + timedelta(seconds=call.rule.window_seconds if collects else 0.0),
        backfill_id=call.backfill_id,
        occasion=str(call.occasion),
        place=call.place,
        collects=collects,
        order_key=order_key(target.kind, target.key, options, call.backfill_id),
    )
