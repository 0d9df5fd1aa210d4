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
    DateTime,
    Integer,
    Interval,
    Text,
    and_,
    case,
    func,
    literal,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert

from retrofill.contract.partitioning import partition_of
from retrofill.domain.alert import DeadlineAlert
from retrofill.domain.deadline import FIRST, LAST, PAST, Arming, DeadlineState, Due
from retrofill.domain.run import RunState
from retrofill.store.arrays import rows_of
from retrofill.store.tables import Moment, deadline, run


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


def insert_deadlines(
    conn: Connection,
    backfill_id: str,
    pipeline: str,
    alert: DeadlineAlert,
    subjects: Sequence[Subject],
    partitions: int,
) -> list[NewDeadline]:
    """Insert a deadline of ``alert`` for each subject without one; returns those inserted."""
    ids = _next_ids(conn, len(subjects))
    shards = [partition_of(str(each), partitions) for each in ids]
    armings = [subject.arming for subject in subjects]
    given = rows_of(
        "given",
        {
            "id": (BigInteger, ids),
            "shard": (Integer, shards),
            "run_id": (BigInteger, [subject.run_id for subject in subjects]),
            "due_at": (DateTime(timezone=True), [arming.due_at for arming in armings]),
            "state": (Text, [str(arming.state) for arming in armings]),
            "reason": (Text, [arming.reason for arming in armings]),
        },
    )
    same = {"backfill_id": backfill_id, "pipeline": pipeline, **_of_alert(alert)}
    constants = [literal(value, deadline.c[name].type) for name, value in same.items()]
    nothing = literal(None, DateTime(timezone=True))
    decided = case((given.c.state == str(DeadlineState.VOID), func.clock_timestamp()), else_=nothing)
    given_columns = list(given.c)
    inserted = conn.execute(
        insert(deadline)
        .from_select(
            [*(column.name for column in given_columns), *same, "decided_at"],
            select(*given_columns, *constants, decided),
        )
        .on_conflict_do_nothing()
        .returning(deadline.c.id)
    )
    landed = set(inserted.scalars())
    return [NewDeadline(*each) for each in zip(ids, shards, armings, strict=True) if each[0] in landed]


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
    given = rows_of(
        "given",
        {
            "id": (BigInteger, ids),
            "shard": (Integer, [partition_of(str(id), partitions) for id in ids]),
        },
        number="place",
    )
    same = {"backfill_id": backfill_id, "pipeline": pipeline, **_of_alert(alert)}
    constants = [literal(value, deadline.c[name].type) for name, value in same.items()]
    columns = ["id", "shard", "run_id", "due_at", "state", "reason", "decided_at"]
    selected = select(given.c.id, given.c.shard, run.c.id, *_arming(alert, due), *constants).where(
        run.c.backfill_id == backfill_id,
        run.c.position == given.c.place + (first - 1),
        # Implied by the line above, but without it Postgres reads all runs of the backfill per
        # chunk.
        run.c.position >= first,
        run.c.position < first + len(ids),
    )
    conn.execute(insert(deadline).from_select([*columns, *same], selected))


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


def _next_ids(conn: Connection, count: int) -> list[int]:
    sequence = "SELECT nextval(pg_get_serial_sequence('retrofill.deadline', 'id')) FROM generate_series(1, :n)"
    return list(conn.execute(text(sequence), {"n": count}).scalars())


def _of_alert(alert: DeadlineAlert) -> dict[str, Any]:
    """The columns that all deadlines of an alert share."""
    target = alert.callback
    options: dict[str, Any] = {"at_most_once": alert.at_most_once}
    if target is not None and target.kind == "webhook":
        options["secret"] = target.secret
    return {
        "alert": alert.name,
        "task": alert.task,
        "reference": str(alert.reference),
        "interval_seconds": alert.interval_seconds,
        "fire_on_failure": alert.fire_on_failure,
        "digest_seconds": alert.digest_seconds,
        "callback": None if target is None else target.label,
        "callback_kind": "function" if target is None else target.kind,
        "callback_options": options,
        "kwargs": alert.kwargs,
    }


def last_runtimes(conn: Connection, pipeline_no: int, last_n: int) -> list[timedelta]:
    """Times from first start to success of the pipeline's last successes, latest first."""
    return list(
        conn.execute(
            select(run.c.finished_at - run.c.started_at)
            .where(
                run.c.pipeline_no == pipeline_no,
                run.c.state == literal(str(RunState.SUCCEEDED), literal_execute=True),
                run.c.started_at.is_not(None),
            )
            .order_by(run.c.finished_at.desc())
            .limit(last_n)
        ).scalars()
    )
