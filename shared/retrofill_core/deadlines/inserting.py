"""Inserting deadlines, those of many runs in one statement."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
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

from retrofill.states import AttemptMode
from retrofill_core.contract.partitioning import partitions_of
from retrofill_core.domain.alert import DeadlineAlert
from retrofill_core.domain.deadline import FIRST, LAST, PAST, Arming, DeadlineState, Due
from retrofill_core.domain.run import RunState
from retrofill_core.domain.target import options_of
from retrofill_core.store.arrays import Arrays
from retrofill_core.store.listed import next_ids
from retrofill_core.store.states import constant, in_state
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
        "callback": None if target is None else target.label,
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
