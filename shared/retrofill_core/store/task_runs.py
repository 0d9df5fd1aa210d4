"""Task run rows: created when the run begins, moved by reports, cancelled with their attempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, Text, insert, select

from retrofill.states import TASK_RUN_MACHINE, TaskState
from retrofill_core.store.sql import Arrays, constant
from retrofill_core.store.tables import task_run
from retrofill_core.store.transition import Values, transition

_TASKS = Arrays("given", run_id=BigInteger, attempt=Integer, task=Text)
_CREATE = insert(task_run).from_select(
    ["run_id", "attempt", "task", "state"], select(*_TASKS.c, constant(TaskState.NONE))
)
_ATTEMPTS = Arrays("given", run_id=BigInteger, attempt=Integer)
_FIND = select(task_run.c.run_id, task_run.c.attempt, task_run.c.task, task_run.c.state).where(
    task_run.c.run_id == _ATTEMPTS.c.run_id, task_run.c.attempt == _ATTEMPTS.c.attempt
)


def create(conn: Connection, tasks: Sequence[tuple[int, int, str]]) -> None:
    """Insert task runs, each (run id, attempt, task)."""
    ids, attempts = (id for id, _, _ in tasks), (attempt for _, attempt, _ in tasks)
    conn.execute(_CREATE, _TASKS.values(run_id=ids, attempt=attempts, task=(task for _, _, task in tasks)))


def states(conn: Connection, attempts: Collection[tuple[int, int]]) -> dict[tuple[int, int, str], TaskState]:
    """States of the task runs of attempts (run id, attempt), by (run id, attempt, task)."""
    pairs = sorted(attempts)
    given = _ATTEMPTS.values(run_id=(id for id, _ in pairs), attempt=(attempt for _, attempt in pairs))
    return {(id, attempt, task): TaskState(state) for id, attempt, task, state in conn.execute(_FIND, given)}


def move(
    conn: Connection,
    to: str,
    rows: Sequence[Values],
    values: Mapping[str, Any],
    from_states: Sequence[str] | None = None,
) -> int:
    """Move task runs (``run_id``, ``attempt``, ``task`` and columns to set); how many landed."""
    return len(transition(conn, TASK_RUN_MACHINE, task_run, to, rows, from_states=from_states, values=values))


def cancel_open(conn: Connection, attempts: Sequence[tuple[int, int]], now: datetime) -> None:
    """Cancel the unfinished tasks of ended attempts (run id, attempt)."""
    found = states(conn, attempts) if attempts else {}
    rows = [
        {"run_id": id, "attempt": attempt, "task": task}
        for (id, attempt, task), state in found.items()
        if state not in TASK_RUN_MACHINE.terminal
    ]
    move(conn, TaskState.CANCELLED, rows, {"finished_at": now})
