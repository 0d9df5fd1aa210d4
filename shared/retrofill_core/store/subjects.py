"""Facts about what deadlines are armed for: task attempts and backfill progress."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BigInteger, ColumnElement, Connection, Text, func, select

from retrofill_core.domain.run import GOING, RunState
from retrofill_core.store.sql import Arrays, in_state, one_of
from retrofill_core.store.tables import backfill, run, task_run


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """State of one task in one attempt of a run."""

    attempt: int
    state: str
    finished_at: datetime | None


# By run and task; a deadline without one has none.
TaskEnds = Mapping[tuple[int | None, str | None], Sequence[TaskEnd]]
_TASKS = Arrays("given", run_id=BigInteger, task=Text)
_t = task_run.c
_ENDS = select(_t.run_id, _t.task, _t.attempt, _t.state, _t.finished_at).where(
    _t.run_id == _TASKS.c.run_id, _t.task == _TASKS.c.task
)


def task_ends(conn: Connection, pairs: Collection[tuple[int, str]]) -> TaskEnds:
    """Attempts of tasks. The caller holds the runs' locks."""
    chosen = sorted(pairs)
    given = _TASKS.values(run_id=(id for id, _ in chosen), task=(task for _, task in chosen))
    found: dict[tuple[int | None, str | None], list[TaskEnd]] = {}
    for row in conn.execute(_ENDS, given):
        found.setdefault((row.run_id, row.task), []).append(TaskEnd(row.attempt, row.state, row.finished_at))
    return found


@dataclass(frozen=True, slots=True)
class BackfillFacts:
    """What ``DeadlineMissed`` reports of the backfill."""

    runs: int
    runs_done: int
    timezone: str


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    mine = run.c.backfill_id == backfill.c.id
    return select(func.count()).select_from(run).where(mine, condition).scalar_subquery()


_FACTS = select(
    backfill.c.id,
    backfill.c.runs,
    (_count(in_state(run, RunState.QUEUED)) + _count(in_state(run, *GOING))).label("unfinished"),
    backfill.c.definition["timezone"].astext.label("timezone"),
).where(one_of(backfill.c.id, "ids"))


def backfill_facts(conn: Connection, ids: Collection[str]) -> dict[str, BackfillFacts]:
    """Facts by backfill id. Unfinished runs are counted in two small partial indexes."""
    rows = conn.execute(_FACTS, {"ids": list(ids)})
    return {row.id: BackfillFacts(row.runs, row.runs - row.unfinished, row.timezone) for row in rows}
