"""The watcher's decisions. Pure: (what the rows say, the database's time) → verdicts, and when to look again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from retrofill.domain.backfill import MACHINE as BACKFILL_MACHINE
from retrofill.domain.deadline import DeadlineState, End, Scope, Watched, judge
from retrofill.domain.run import MACHINE as RUN_MACHINE
from retrofill.domain.task_run import TaskState

Row = Mapping[str, Any]

# Hints may be lost: the index is probed this often whatever is known.
POLL_SECONDS = 60.0
# Somebody else had the run of a due deadline locked.
AGAIN_SECONDS = 0.05
# Timers may end a little early; the database's clock decides, so a little late costs nothing and saves a look.
AFTER_SECONDS = 0.001


class TaskEnd(Protocol):
    """One attempt of one task."""

    @property
    def attempt(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def finished_at(self) -> datetime | None: ...


TaskEnds = Mapping[tuple[int, str], Sequence[TaskEnd]]


@dataclass
class Verdicts:
    """Deadlines to end, by state; those that stay armed are in none. ``recovered``: when missed ones were done."""

    met: list[Row] = field(default_factory=list)
    missed: list[Row] = field(default_factory=list)
    void: list[tuple[Row, str]] = field(default_factory=list)
    recovered: dict[int, datetime] = field(default_factory=dict)


def decide(rows: Sequence[Row], tasks: TaskEnds, now: datetime) -> Verdicts:
    """Judge armed deadlines, each with its locked run or backfill, at ``now``, read after the locks."""
    verdicts = Verdicts()
    for row in rows:
        ended, ended_at = how_it_ended(row, tasks)
        verdict = judge(Watched(row["due_at"], row["fire_on_failure"], scope_of(row), ended, ended_at), now)
        if verdict is None:
            continue
        match verdict.state:
            case DeadlineState.MET:
                verdicts.met.append(row)
            case DeadlineState.MISSED:
                verdicts.missed.append(row)
                if verdict.recovered and ended_at is not None:
                    verdicts.recovered[row["id"]] = ended_at
            case _:
                verdicts.void.append((row, verdict.reason or ""))
    return verdicts


def scope_of(row: Row) -> Scope:
    """What the deadline is about."""
    if row["run_id"] is None:
        return Scope.BACKFILL
    return Scope.RUN if row["task"] is None else Scope.TASK


def how_it_ended(row: Row, tasks: TaskEnds) -> tuple[End | None, datetime | None]:
    """How and when what the deadline is about ended, or twice ``None``."""
    match scope_of(row):
        case Scope.BACKFILL:
            over = row["run_state"] in BACKFILL_MACHINE.terminal
        case Scope.RUN:
            over = row["run_state"] in RUN_MACHINE.terminal
        case Scope.TASK:
            return _how_task_ended(row, tasks.get((row["run_id"], row["task"]), ()))
    return (End(row["run_state"]), row["ended_at"]) if over else (None, None)


def _how_task_ended(row: Row, attempts: Sequence[TaskEnd]) -> tuple[End | None, datetime | None]:
    """A success of any attempt counts, the first one; other ends only in the newest attempt, for the next may succeed."""
    successes = [a.finished_at for a in attempts if a.state == TaskState.SUCCEEDED and a.finished_at is not None]
    if successes:
        return End.SUCCEEDED, min(successes)
    newest = max(attempts, key=lambda a: a.attempt, default=None)
    if newest is not None and newest.attempt == row["run_attempt"]:
        if newest.state in (TaskState.FAILED, TaskState.UPSTREAM_FAILED):
            return End.FAILED, newest.finished_at
        if newest.state == TaskState.SKIPPED:
            return End.SKIPPED, newest.finished_at
    # A lost attempt cancels its tasks too, and the next one runs them again: only the run's own end is one for the task.
    if row["run_state"] in RUN_MACHINE.terminal:
        return (End.FAILED if row["run_state"] == End.FAILED else End.CANCELLED), row["ended_at"]
    return None, None


def task_state(attempts: Sequence[TaskEnd]) -> str:
    """The state of a task as it is now: of its newest attempt."""
    newest = max(attempts, key=lambda a: a.attempt, default=None)
    return str(TaskState.NONE if newest is None else newest.state)


def seconds_to_next(earliest: datetime | None, now: datetime, *, more: bool) -> float:
    """When to look again: at the next moment. ``more``: the batch was full, so there may be others at once."""
    if more:
        return 0.0
    if earliest is None:
        return POLL_SECONDS
    left = (earliest - now).total_seconds()
    return AGAIN_SECONDS if left <= 0 else min(left + AFTER_SECONDS, POLL_SECONDS)
