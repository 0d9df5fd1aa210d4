"""Runs and task runs as rows: locks, claims, and what a report changes. Every state goes through ``transition``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    RowMapping,
    Text,
    and_,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)

from retrofill.domain.backfill import ACTIVE, BackfillState, OnRunFailure
from retrofill.domain.run import LIVE, MACHINE, RunState
from retrofill.domain.task_run import MACHINE as TASK_MACHINE
from retrofill.domain.task_run import TaskState
from retrofill.store.arrays import rows_of
from retrofill.store.tables import backfill, pipeline, run, task_run
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
    conn: Connection, to: str, rows: Sequence[Values], values: Mapping[str, Any], frm: Sequence[str] | None = None
) -> int:
    """Move runs (``id``, ``attempt`` and columns to set) to ``to`` under their attempt; how many landed."""
    return len(transition(conn, MACHINE, run, to, rows, guard=["attempt"], frm=frm, values=values))


def extend_leases(conn: Connection, attempts: Collection[tuple[int, int]], until: datetime) -> None:
    """Extend the leases of live attempts; those that are not live any more are left alone."""
    if not attempts:
        return
    pairs = sorted(attempts)
    given = rows_of(
        "given", {"id": (BigInteger, [id for id, _ in pairs]), "attempt": (Integer, [attempt for _, attempt in pairs])}
    )
    conn.execute(
        update(run)
        .where(run.c.id == given.c.id, run.c.attempt == given.c.attempt, run.c.state.in_(LIVE))
        .values(lease_until=until)
    )


# publishing


def orphan(conn: Connection, lost: Sequence[tuple[int, int, int]]) -> int:
    """Nobody publishes these (id, publication, losses counted so far) any more; how many landed."""
    if not lost:
        return 0
    given = rows_of(
        "given",
        {
            "id": (BigInteger, [id for id, _, _ in lost]),
            "publication": (Integer, [publication for _, publication, _ in lost]),
            "lost_attempts": (Integer, [losses for _, _, losses in lost]),
        },
    )
    return conn.execute(
        update(run)
        .where(run.c.id == given.c.id, run.c.publication == given.c.publication, run.c.state == RunState.PUBLISHING)
        .values(host=None, lost_attempts=given.c.lost_attempts)
    ).rowcount


def orphans(conn: Connection, backfill_ids: Sequence[str]) -> dict[int, str]:
    """Runs of these backfills that wait for somebody to publish them, with their backfill."""
    rows = conn.execute(
        select(run.c.id, run.c.backfill_id)
        .where(run.c.backfill_id == func.any(list(backfill_ids)), run.c.slot.is_not(None), _ORPHANED)
        .order_by(run.c.id)
    ).all()
    return {row.id: row.backfill_id for row in rows}


def adopt(conn: Connection, ids: Sequence[int], host: str, lease_until: datetime) -> Sequence[RowMapping]:
    """Make ``host`` the publisher of those of the runs that have none; the rows, with their new publication."""
    return (
        conn.execute(
            update(run)
            .where(run.c.id == func.any(list(ids)), _ORPHANED)
            .values(host=host, lease_until=lease_until, publication=run.c.publication + 1)
            .returning(run)
        )
        .mappings()
        .all()
    )


# claiming


@dataclass(frozen=True)
class Room:
    """How much room there is for runs of one backfill; slots are those that are taken."""

    pipeline_limit: int
    backfill_slots: frozenset[int]
    pipeline_slots: frozenset[int]
    # Live runs of other backfills of the pipeline that could claim now.
    rivals: tuple[int, ...]


def lock_pipelines(conn: Connection, numbers: Collection[int]) -> dict[int, int]:
    """The limits of pipelines by number, their rows locked; without those that somebody else has locked."""
    rows = conn.execute(
        select(pipeline.c.no, pipeline.c.max_active_runs)
        .where(pipeline.c.no == func.any(sorted(numbers)))
        .order_by(pipeline.c.no)
        .with_for_update(key_share=True, skip_locked=True)
    )
    return {row.no: row.max_active_runs for row in rows}


def rooms(conn: Connection, pipeline_of: Mapping[str, int], limits: Mapping[int, int]) -> dict[str, Room]:
    """Count what is live beside each of these backfills, by its id; all rows are locked by the caller."""
    numbers = sorted(set(pipeline_of.values()))
    taken = conn.execute(
        select(run.c.pipeline_no, run.c.backfill_id, run.c.slot, run.c.pipeline_slot).where(
            run.c.pipeline_no == func.any(numbers), run.c.pipeline_slot.is_not(None)
        )
    ).all()
    own: dict[str, set[int]] = {}
    shared: dict[int, set[int]] = {}
    for row in taken:
        own.setdefault(row.backfill_id, set()).add(row.slot)
        shared.setdefault(row.pipeline_no, set()).add(row.pipeline_slot)
    claimants = _claimants(conn, numbers)
    return {
        id: Room(
            limits[no],
            frozenset(own.get(id, ())),
            frozenset(shared.get(no, ())),
            tuple(live for other, live in claimants.get(no, ()) if other != id),
        )
        for id, no in pipeline_of.items()
    }


def count_unfinished(conn: Connection) -> dict[str, float]:
    """Runs that have not ended, by state, from the small indexes that only they are in."""
    waiting = run.c.state == literal(str(RunState.QUEUED), literal_execute=True)
    queued = conn.execute(select(func.count()).where(waiting)).scalar_one()
    live = conn.execute(select(run.c.state, func.count()).where(run.c.slot.is_not(None)).group_by(run.c.state)).all()
    return {str(RunState.QUEUED): queued, **{str(state): 0 for state in LIVE}, **{row[0]: row[1] for row in live}}


def _claimants(conn: Connection, numbers: Sequence[int]) -> dict[int, list[tuple[str, int]]]:
    """Backfills that have a run to start and room for it, with their live runs, by the number of their pipeline."""
    live = (
        select(func.count())
        .select_from(run)
        .where(run.c.backfill_id == backfill.c.id, run.c.slot.is_not(None))
        .scalar_subquery()
    )
    failed_since = exists().where(
        run.c.backfill_id == backfill.c.id,
        run.c.state == RunState.FAILED,
        (backfill.c.resumed_at.is_(None)) | (run.c.finished_at > backfill.c.resumed_at),
    )
    rows = conn.execute(
        select(backfill.c.pipeline_no, backfill.c.id, live.label("live")).where(
            backfill.c.pipeline_no == func.any(numbers),
            backfill.c.state == BackfillState.RUNNING,
            exists().where(run.c.backfill_id == backfill.c.id, run.c.state == RunState.QUEUED),
            live < backfill.c.max_active_runs,
            (backfill.c.on_run_failure == OnRunFailure.CONTINUE) | ~failed_since,
        )
    )
    found: dict[int, list[tuple[str, int]]] = {}
    for row in rows:
        found.setdefault(row.pipeline_no, []).append((row.id, row.live))
    return found


def next_queued(conn: Connection, wanted: Mapping[str, int]) -> dict[str, list[RowMapping]]:
    """The next runs to start of each backfill, in order, up to so many of each; nothing for one that has none."""
    given = rows_of(
        "wanted", {"backfill_id": (Text, list(wanted)), "count": (Integer, list(wanted.values()))}, number="no"
    )
    next_runs = (
        select(run)
        .where(run.c.backfill_id == given.c.backfill_id, run.c.state == RunState.QUEUED)
        .order_by(run.c.position)
        .limit(given.c.count)
        .lateral("next_run")
    )
    rows = conn.execute(
        select(next_runs).select_from(given).join(next_runs, true()).order_by(given.c.no, next_runs.c.position)
    ).mappings()
    found: dict[str, list[RowMapping]] = {}
    for row in rows:
        found.setdefault(row["backfill_id"], []).append(row)
    return found


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
    conn: Connection, to: str, rows: Sequence[Values], values: Mapping[str, Any], frm: Sequence[str] | None = None
) -> int:
    """Move task runs (``run_id``, ``attempt``, ``task`` and columns to set); how many landed."""
    return len(transition(conn, TASK_MACHINE, task_run, to, rows, frm=frm, values=values))


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


def earliest_lease(conn: Connection, shard: int) -> datetime | None:
    """When the next lease of a shard's live runs ends."""
    earliest: datetime | None = conn.execute(
        select(func.min(run.c.lease_until)).select_from(_live_of_shard(shard)).where(_LEASED)
    ).scalar_one()
    return earliest


def expired(conn: Connection, shard: int, moment: datetime) -> list[int]:
    """Runs of the shard whose lease ended before ``moment``."""
    return list(
        conn.execute(
            select(run.c.id).select_from(_live_of_shard(shard)).where(run.c.lease_until < moment, _LEASED)
        ).scalars()
    )


def _live_of_shard(shard: int):  # type: ignore[no-untyped-def]  # a join, whose type SQLAlchemy does not export
    return backfill.join(
        run,
        and_(
            backfill.c.shard == shard,
            backfill.c.state.in_(ACTIVE),
            run.c.backfill_id == backfill.c.id,
            run.c.slot.is_not(None),
        ),
    )


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


def may_begin(conn: Connection, run_id: int, attempt: int, publication: int) -> bool:
    """Whether user code of the attempt, or a publication of its output, may run: it is the live one, and its lease has not ended.

    User code that is to be cancelled does not begin; a publication does.

    The lease matters: a heartbeat that was acknowledged before the lease's end is always read before it is declared ended.
    """
    return conn.execute(
        select(
            exists().where(
                run.c.id == run_id,
                run.c.attempt == attempt,
                run.c.publication == publication,
                run.c.state.in_(LIVE),
                run.c.cancel_requested.is_(False) | (run.c.state == RunState.PUBLISHING),
                run.c.lease_until > func.clock_timestamp(),
            )
        )
    ).scalar_one()


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
