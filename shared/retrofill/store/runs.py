"""Runs and task runs as rows: locks, claims, and what a report changes. Every state goes through ``transition``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    DateTime,
    Integer,
    RowMapping,
    Text,
    and_,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from retrofill.domain.run import LIVE, MACHINE, RunState
from retrofill.domain.task_run import MACHINE as TASK_MACHINE
from retrofill.domain.task_run import TaskState
from retrofill.store.arrays import rows_of
from retrofill.store.tables import backfill, run, task_run
from retrofill.store.transition import Values, transition

RUN_CHANNEL = "retrofill_run"
SLOT_CHANNEL = "retrofill_slot"
_ORPHANED = and_(run.c.state == RunState.PUBLISHING, run.c.host.is_(None))
# Whose silence ends a lease: publication, too, but not while it waits for a publisher.
_LEASED = or_(
    run.c.state.in_([RunState.STARTING, RunState.RUNNING]),
    and_(run.c.state == RunState.PUBLISHING, run.c.host.is_not(None)),
)
NOT_LIVE: dict[str, Any] = {"slot": None, "pipeline_slot": None, "lease_until": None, "host": None}


def lock(conn: Connection, ids: Collection[int]) -> dict[int, RowMapping]:
    """Runs by id, locked in the order of their ids."""
    rows = conn.execute(
        select(run).where(run.c.id == func.any(sorted(ids))).order_by(run.c.id).with_for_update(key_share=True)
    ).mappings()
    return {row["id"]: row for row in rows}


def move(
    conn: Connection,
    to: str,
    rows: Sequence[Values],
    values: Mapping[str, Any],
    from_states: Sequence[str] | None = None,
) -> int:
    """Move runs (``id``, ``attempt`` and columns to set) to ``to`` under their attempt; how many landed."""
    return len(transition(conn, MACHINE, run, to, rows, guard=["attempt"], from_states=from_states, values=values))


def extend_leases(conn: Connection, until: Mapping[tuple[int, int], datetime]) -> None:
    """Extend the leases of live attempts (run, attempt); those that are not live any more are left alone."""
    if not until:
        return
    pairs = sorted(until)
    given = rows_of(
        "given",
        {
            "id": (BigInteger, [id for id, _ in pairs]),
            "attempt": (Integer, [attempt for _, attempt in pairs]),
            "until": (DateTime(timezone=True), [until[pair] for pair in pairs]),
        },
    )
    conn.execute(
        update(run)
        .where(run.c.id == given.c.id, run.c.attempt == given.c.attempt, run.c.state.in_(LIVE))
        .values(lease_until=given.c.until)
    )


# publishing


@dataclass(frozen=True)
class LostPublisher:
    """A run whose publisher was lost, with all of its losses so far: their number, and those that are kept."""

    id: int
    publication: int
    lost_attempts: int
    losses: dict[str, Any]


def orphan(conn: Connection, lost: Sequence[LostPublisher]) -> int:
    """Nobody publishes these any more; how many landed."""
    if not lost:
        return 0
    given = rows_of(
        "given",
        {
            "id": (BigInteger, [one.id for one in lost]),
            "publication": (Integer, [one.publication for one in lost]),
            "lost_attempts": (Integer, [one.lost_attempts for one in lost]),
            "losses": (run.c.losses.type, [one.losses for one in lost]),
        },
    )
    return conn.execute(
        update(run)
        .where(run.c.id == given.c.id, run.c.publication == given.c.publication, run.c.state == RunState.PUBLISHING)
        .values(host=None, lost_attempts=given.c.lost_attempts, losses=given.c.losses)
    ).rowcount


def orphans(conn: Connection, backfill_ids: Sequence[str]) -> dict[int, str]:
    """Runs of these backfills that wait for somebody to publish them, with their backfill."""
    rows = conn.execute(
        select(run.c.id, run.c.backfill_id)
        .where(run.c.backfill_id == func.any(list(backfill_ids)), run.c.slot.is_not(None), _ORPHANED)
        .order_by(run.c.id)
    ).all()
    return {row.id: row.backfill_id for row in rows}


def adopt(
    conn: Connection, ids: Sequence[int], host: str, lease_until: datetime, lease_seconds: float
) -> Sequence[RowMapping]:
    """Make ``host`` the publisher of those of the runs that have none; the rows, with their new publication."""
    return (
        conn.execute(
            update(run)
            .where(run.c.id == func.any(list(ids)), _ORPHANED)
            .values(
                host=host,
                lease_until=lease_until,
                lease_seconds=lease_seconds,
                publication=run.c.publication + 1,
            )
            .returning(run)
        )
        .mappings()
        .all()
    )


# claiming


def count_unfinished(conn: Connection) -> dict[str, float]:
    """Runs that have not ended, by state, from the small indexes that only they are in."""
    waiting = run.c.state == literal(str(RunState.QUEUED), literal_execute=True)
    queued = conn.execute(select(func.count()).where(waiting)).scalar_one()
    live = conn.execute(select(run.c.state, func.count()).where(run.c.slot.is_not(None)).group_by(run.c.state)).all()
    return {str(RunState.QUEUED): queued, **{str(state): 0 for state in LIVE}, **{row[0]: row[1] for row in live}}


def insert_task_runs(conn: Connection, tasks: Sequence[tuple[int, int, str]]) -> None:
    """A row for each (run id, attempt, task)."""
    given = rows_of(
        "given",
        {
            "run_id": (BigInteger, [id for id, _, _ in tasks]),
            "attempt": (Integer, [attempt for _, attempt, _ in tasks]),
            "task": (Text, [task for _, _, task in tasks]),
        },
    )
    chosen = select(given.c.run_id, given.c.attempt, given.c.task, literal(str(TaskState.NONE)))
    conn.execute(insert(task_run).from_select(["run_id", "attempt", "task", "state"], chosen))


# tasks


def task_runs(conn: Connection, attempts: Collection[tuple[int, int]]) -> dict[tuple[int, int, str], RowMapping]:
    """Task runs of these attempts."""
    pairs = sorted(attempts)
    given = rows_of(
        "given",
        {"run_id": (BigInteger, [id for id, _ in pairs]), "attempt": (Integer, [attempt for _, attempt in pairs])},
    )
    rows = conn.execute(
        select(task_run).where(task_run.c.run_id == given.c.run_id, task_run.c.attempt == given.c.attempt)
    ).mappings()
    return {(row["run_id"], row["attempt"], row["task"]): row for row in rows}


def move_tasks(
    conn: Connection,
    to: str,
    rows: Sequence[Values],
    values: Mapping[str, Any],
    from_states: Sequence[str] | None = None,
) -> int:
    """Move task runs (``run_id``, ``attempt``, ``task`` and columns to set); how many landed."""
    return len(transition(conn, TASK_MACHINE, task_run, to, rows, from_states=from_states, values=values))


def cancel_open_tasks(conn: Connection, attempts: Sequence[tuple[int, int]], now: datetime) -> None:
    """The tasks that an ended attempt leaves open are cancelled with it."""
    found = task_runs(conn, attempts) if attempts else {}
    rows = [
        {"run_id": id, "attempt": attempt, "task": task}
        for (id, attempt, task), row in found.items()
        if row["state"] not in TASK_MACHINE.terminal
    ]
    move_tasks(conn, TaskState.CANCELLED, rows, {"finished_at": now})


# leases


@dataclass(frozen=True)
class Lease:
    """The lease of a live run; ``seconds`` is what a heartbeat extends it by, where its claim stored that."""

    run_id: int
    until: datetime
    seconds: float | None


def leases(conn: Connection, shard: int) -> list[Lease]:
    """The leases of a shard's live runs: those whose silence ends them."""
    mine = and_(backfill.c.id == run.c.backfill_id, backfill.c.shard == shard)
    rows = conn.execute(
        select(run.c.id, run.c.lease_until, run.c.lease_seconds)
        .select_from(run.join(backfill, mine))
        .where(run.c.slot.is_not(None), _LEASED)
    )
    return [Lease(*row) for row in rows]


# cancelling


def mark_cancel_requested(conn: Connection, backfill_id: str) -> list[int]:
    """Ask the drivers of a backfill's live runs to end; returns the runs that were not asked before."""
    return list(
        conn.execute(
            update(run)
            .where(run.c.backfill_id == backfill_id, run.c.slot.is_not(None), run.c.cancel_requested.is_(False))
            .values(cancel_requested=True)
            .returning(run.c.id)
        ).scalars()
    )


# drivers


def may_begin(conn: Connection, run_id: int, attempt: int, publication: int) -> bool | None:
    """Whether user code of the attempt, or a publication of its output, may run: it is the live one, and its lease lasts.

    User code that is to be cancelled does not begin; a publication does. ``None``: it is the live one, but its lease
    seems to be over. By the database's clock alone that is not known, as the clock may have been set: the heartbeat
    that was sent before the question either renews the lease, or comes too late and the attempt is ended.

    The lease matters: a heartbeat that was acknowledged before the lease's end is always read before it is declared ended.
    """
    lasts = conn.execute(
        select(run.c.lease_until > func.clock_timestamp()).where(
            run.c.id == run_id,
            run.c.attempt == attempt,
            run.c.publication == publication,
            run.c.state.in_(LIVE),
            run.c.cancel_requested.is_(False) | (run.c.state == RunState.PUBLISHING),
            run.c.lease_until.is_not(None),
        )
    ).scalar_one_or_none()
    if lasts is None:
        return False
    return True if lasts else None


def accepted(conn: Connection, run_id: int, attempt: int) -> bool | None:
    """Whether what the attempt staged is its own driver's to publish; ``None`` while that is not decided."""
    row = conn.execute(
        select(run.c.attempt, run.c.publication, run.c.state, run.c.host).where(run.c.id == run_id)
    ).one_or_none()
    if row is None or row.attempt != attempt:
        return False
    if row.state in (RunState.STARTING, RunState.RUNNING):
        return None
    return row.state == RunState.PUBLISHING and row.publication == 0 and row.host is not None


def to_be_ended(conn: Connection, hosted: Collection[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Those (run, attempt, publication) that are not the live one any more, or are to be cancelled.

    One that succeeded or failed under its own attempt said so itself: its driver is about to be free.
    """
    rows = conn.execute(
        select(run.c.id, run.c.attempt, run.c.publication, run.c.state, run.c.cancel_requested).where(
            run.c.id == func.any([id for id, _, _ in hosted])
        )
    ).all()
    goes_on = (RunState.SUCCEEDED, RunState.FAILED, RunState.PUBLISHING)
    good = {
        (row.id, row.attempt, row.publication)
        for row in rows
        if row.state in goes_on or (row.state in LIVE and not row.cancel_requested)
    }
    return [key for key in hosted if key not in good]
