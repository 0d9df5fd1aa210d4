"""Facts about what deadlines are armed for: task attempts and backfill progress."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BigInteger, ColumnElement, Connection, Text, func, literal, select

from retrofill.domain.run import RunState
from retrofill.store.arrays import rows_of
from retrofill.store.tables import backfill, run, task_run


@dataclass(frozen=True)
class TaskEnd:
    """State of one task in one attempt of a run."""

    attempt: int
    state: str
    finished_at: datetime | None


def task_ends(conn: Connection, pairs: Collection[tuple[int, str]]) -> dict[tuple[int, str], list[TaskEnd]]:
    """Attempts of tasks, by (run id, task). The caller holds the runs' locks."""
    chosen = sorted(pairs)
    given = rows_of("given", {"run_id": (BigInteger, [id for id, _ in chosen]), "task": (Text, [t for _, t in chosen])})
    t = task_run.c
    rows = conn.execute(
        select(t.run_id, t.task, t.attempt, t.state, t.finished_at).where(
            t.run_id == given.c.run_id, t.task == given.c.task
        )
    )
    found: dict[tuple[int, str], list[TaskEnd]] = {}
    for row in rows:
        found.setdefault((row.run_id, row.task), []).append(TaskEnd(row.attempt, row.state, row.finished_at))
    return found


@dataclass(frozen=True)
class BackfillFacts:
    """What ``DeadlineMissed`` reports of the backfill."""

    runs: int
    runs_done: int
    timezone: str


def backfill_facts(conn: Connection, ids: Collection[str]) -> dict[str, BackfillFacts]:
    """Facts by backfill id. Unfinished runs are counted in two small partial indexes."""

    def count(condition: ColumnElement[bool]) -> ColumnElement[int]:
        mine = run.c.backfill_id == backfill.c.id
        return select(func.count()).select_from(run).where(mine, condition).scalar_subquery()

    queued = count(run.c.state == literal(str(RunState.QUEUED), literal_execute=True))
    live = count(run.c.slot.is_not(None))
    rows = conn.execute(
        select(
            backfill.c.id,
            backfill.c.runs,
            (queued + live).label("unfinished"),
            backfill.c.definition["timezone"].astext.label("timezone"),
        ).where(backfill.c.id == func.any(list(ids)))
    )
    return {row.id: BackfillFacts(row.runs, row.runs - row.unfinished, row.timezone) for row in rows}
