"""Rows of runs and of their tasks: locks, the runs of attempts, publication.

Every state changes through ``transition``. The rows of tasks are created when a run begins, moved by reports, and cancelled
with their attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    bindparam,
    func,
    insert,
    or_,
    select,
    update,
)

from retrofill.states import TASK_RUN_MACHINE, TaskState
from retrofill_core.domain.backfill import ACTIVE
from retrofill_core.domain.run import GOING, LIVE, MACHINE, RunState
from retrofill_core.store.backfills import PUBLISHES_BELOW
from retrofill_core.store.rows import Run, columns_of
from retrofill_core.store.sql import Arrays, constant, in_state, one_of
from retrofill_core.store.tables import backfill, run, task_run
from retrofill_core.store.transition import Values, transition

SLOT_CHANNEL = "retrofill_slot"
COLUMNS = columns_of(Run, run)
_LOCK = select(*COLUMNS).where(one_of(run.c.id, "ids")).order_by(run.c.id).with_for_update(key_share=True)
_LOCK_ALL = (
    select(*COLUMNS)
    .where(or_(one_of(run.c.id, "ids"), one_of(run.c.attempt_id, "attempts") & in_state(run, *LIVE)))
    .order_by(run.c.id)
    .with_for_update(key_share=True)
)


def lock(conn: Connection, ids: Collection[int], *, live_of: Collection[int] = ()) -> dict[int, Run]:
    """Runs by id, locked in id order: ``ids``, and the live ones of the attempts ``live_of``."""
    if live_of:
        rows = conn.execute(_LOCK_ALL, {"ids": sorted(ids), "attempts": sorted(live_of)})
    else:
        rows = conn.execute(_LOCK, {"ids": sorted(ids)})
    return {row[0]: Run(*row) for row in rows}


def move(
    conn: Connection,
    to: str,
    rows: Sequence[Values],
    values: Mapping[str, Any],
    from_states: Sequence[str] | None = None,
    *,
    guard: Sequence[str] = ("attempt_id",),
) -> int:
    """Move runs (``id``, those of ``guard`` and columns to set), guarded; how many landed."""
    return len(transition(conn, MACHINE, run, to, rows, guard=guard, from_states=from_states, values=values))


_FAILING = Arrays("over", id=BigInteger, error=run.c.error.type)
_MARK = update(run).where(run.c.id == _FAILING.c.id, in_state(run, RunState.RUNNING)).values(error=_FAILING.c.error)


def mark_failing(conn: Connection, errors: Mapping[int, Mapping[str, Any]]) -> None:
    """Mark locked running runs: they fail with these errors once their attempt has ended."""
    conn.execute(_MARK, _FAILING.values(id=errors, error=errors.values()))


_QUEUED = (
    select(*COLUMNS)
    .where(run.c.backfill_id == bindparam("backfill"), in_state(run, RunState.QUEUED))
    .order_by(run.c.position)
    .limit(bindparam("most", type_=Integer))
)
_HELD = (
    select(*COLUMNS)
    .where(
        run.c.backfill_id == bindparam("backfill"),
        in_state(run, RunState.STAGED),
        run.c.review >= bindparam("approvals", type_=Integer),
    )
    .order_by(run.c.position)
    .limit(bindparam("most", type_=Integer))
)


def queued(conn: Connection, backfill_id: str, most: int) -> list[Run]:
    """The first queued runs of a backfill, suspects included."""
    return [Run(*row) for row in conn.execute(_QUEUED, {"backfill": backfill_id, "most": most})]


def held(conn: Connection, backfill_id: str, approvals: int, most: int) -> list[Run]:
    """The first runs of a backfill whose output waits for another review than the first ``approvals``."""
    given = {"backfill": backfill_id, "approvals": approvals, "most": most}
    return [Run(*row) for row in conn.execute(_HELD, given)]


def due_to_publish() -> ColumnElement[bool]:
    """Whether a staged run may have a publisher now: it does not pause after one that could not publish it."""
    return or_(run.c.publish_after.is_(None), run.c.publish_after <= func.clock_timestamp())


def waiting_to_publish(
    backfill_id: ColumnElement[str], below: ColumnElement[int], *columns: ColumnElement[Any]
) -> tuple[Select[Any], Select[Any]]:
    """Accepted runs that may have a publisher now: of those that do not pause, and those whose pause is over.

    Each in the order of an index, so no others are read, however many wait for a review or pause.
    """
    waiting = select(*columns).where(
        run.c.backfill_id == backfill_id,
        in_state(run, RunState.STAGED),
        run.c.review < below,
    )
    return (
        waiting.where(run.c.publish_after.is_(None)).order_by(run.c.review, run.c.position),
        # As a subquery, the time is read once, so that the index knows where to end.
        waiting.where(run.c.publish_after <= select(func.clock_timestamp()).scalar_subquery()).order_by(
            run.c.publish_after
        ),
    )


def anything_to_publish(backfill_id: ColumnElement[str], below: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether a backfill has such a run.

    Not EXISTS: for that, Postgres may read the staged runs of all backfills at once.
    """
    new, again = (each.limit(1).scalar_subquery() for each in waiting_to_publish(backfill_id, below, run.c.id))
    return or_(new.is_not(None), again.is_not(None))


_TO_PUBLISH = select(backfill.c.id).where(
    backfill.c.shard == bindparam("shard"),
    in_state(backfill, *ACTIVE),
    anything_to_publish(backfill.c.id, PUBLISHES_BELOW),
)


def backfills_to_publish(conn: Connection, shard: int) -> list[str]:
    """Active backfills of a shard that have runs to publish without a publisher."""
    return list(conn.execute(_TO_PUBLISH, {"shard": shard}).scalars())


def count_unfinished(conn: Connection) -> dict[str, float]:
    """Number of unfinished runs by state, from small partial indexes."""
    queued = conn.execute(select(func.count()).where(in_state(run, RunState.QUEUED))).scalar_one()
    rows = conn.execute(select(run.c.state, func.count()).where(in_state(run, *GOING)).group_by(run.c.state)).all()
    return {str(RunState.QUEUED): queued, **{str(state): 0 for state in GOING}, **{row[0]: row[1] for row in rows}}


_TASKS = Arrays("given", run_id=BigInteger, attempt=Integer, task=Text)
_CREATE_TASKS = insert(task_run).from_select(
    ["run_id", "attempt", "task", "state"], select(*_TASKS.c, constant(TaskState.NONE))
)
_ATTEMPTS = Arrays("given", run_id=BigInteger, attempt=Integer)
_FIND_TASKS = select(task_run.c.run_id, task_run.c.attempt, task_run.c.task, task_run.c.state).where(
    task_run.c.run_id == _ATTEMPTS.c.run_id, task_run.c.attempt == _ATTEMPTS.c.attempt
)


def create_tasks(conn: Connection, tasks: Sequence[tuple[int, int, str]]) -> None:
    """Insert task runs, each (run id, attempt, task)."""
    ids, attempts = (id for id, _, _ in tasks), (attempt for _, attempt, _ in tasks)
    conn.execute(_CREATE_TASKS, _TASKS.values(run_id=ids, attempt=attempts, task=(task for _, _, task in tasks)))


def task_states(conn: Connection, attempts: Collection[tuple[int, int]]) -> dict[tuple[int, int, str], TaskState]:
    """States of the task runs of attempts (run id, attempt), by (run id, attempt, task)."""
    pairs = sorted(attempts)
    given = _ATTEMPTS.values(run_id=(id for id, _ in pairs), attempt=(attempt for _, attempt in pairs))
    return {(id, attempt, task): TaskState(state) for id, attempt, task, state in conn.execute(_FIND_TASKS, given)}


def move_tasks(
    conn: Connection,
    to: str,
    rows: Sequence[Values],
    values: Mapping[str, Any],
    from_states: Sequence[str] | None = None,
) -> int:
    """Move task runs (``run_id``, ``attempt``, ``task`` and columns to set); how many landed."""
    return len(transition(conn, TASK_RUN_MACHINE, task_run, to, rows, from_states=from_states, values=values))


def cancel_open_tasks(conn: Connection, attempts: Sequence[tuple[int, int]], now: datetime) -> None:
    """Cancel the unfinished tasks of ended attempts (run id, attempt)."""
    found = task_states(conn, attempts) if attempts else {}
    rows = [
        {"run_id": id, "attempt": attempt, "task": task}
        for (id, attempt, task), state in found.items()
        if state not in TASK_RUN_MACHINE.terminal
    ]
    move_tasks(conn, TaskState.CANCELLED, rows, {"finished_at": now})
