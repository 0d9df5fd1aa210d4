"""Task run rows: created at the claim, moved by reports, cancelled with their attempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, RowMapping, Text, insert, literal, select

from retrofill.domain.task_run import MACHINE, TaskState
from retrofill.store.arrays import rows_of
from retrofill.store.tables import task_run
from retrofill.store.transition import Values, transition


def create(conn: Connection, tasks: Sequence[tuple[int, int, str]]) -> None:
    """Insert task runs, each (run id, attempt, task)."""
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


def find(conn: Connection, attempts: Collection[tuple[int, int]]) -> dict[tuple[int, int, str], RowMapping]:
    """Task runs of attempts (run id, attempt), by (run id, attempt, task)."""
    pairs = sorted(attempts)
    given = rows_of(
        "given",
        {"run_id": (BigInteger, [id for id, _ in pairs]), "attempt": (Integer, [attempt for _, attempt in pairs])},
    )
    rows = conn.execute(
        select(task_run).where(task_run.c.run_id == given.c.run_id, task_run.c.attempt == given.c.attempt)
    ).mappings()
    return {(row["run_id"], row["attempt"], row["task"]): row for row in rows}


def move(
    conn: Connection,
    to: str,
    rows: Sequence[Values],
    values: Mapping[str, Any],
    from_states: Sequence[str] | None = None,
) -> int:
    """Move task runs (``run_id``, ``attempt``, ``task`` and columns to set); how many landed."""
    return len(transition(conn, MACHINE, task_run, to, rows, from_states=from_states, values=values))


def cancel_open(conn: Connection, attempts: Sequence[tuple[int, int]], now: datetime) -> None:
    """Cancel the unfinished tasks of ended attempts (run id, attempt)."""
    found = find(conn, attempts) if attempts else {}
    rows = [
        {"run_id": id, "attempt": attempt, "task": task}
        for (id, attempt, task), row in found.items()
        if row["state"] not in MACHINE.terminal
    ]
    move(conn, TaskState.CANCELLED, rows, {"finished_at": now})
