"""The watcher's decisions. Pure: rows and the database's time → verdicts and wake-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from retrofill.states.task_run import TaskState
from retrofill_core.domain.backfill import MACHINE as BACKFILL_MACHINE
from retrofill_core.domain.backfill import BackfillState as B
from retrofill_core.domain.deadline import DeadlineState, End, Scope, Watched, judge
from retrofill_core.domain.polling import seconds_until
from retrofill_core.domain.run import MACHINE as RUN_MACHINE
from retrofill_core.domain.run import RunState as R

Row = Mapping[str, Any]


class TaskEnd(Protocol):
    """One attempt of one task."""

    @property
    def attempt(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def finished_at(self) -> datetime | None: ...


# What was held for a review was done by then, however long the review takes.
_DONE_WHEN_STAGED = frozenset(
    [*(B.RUNNING, B.PAUSED, B.IN_REVIEW, B.SUCCEEDED), *(R.STAGED, R.PUBLISHING, R.SUCCEEDED)]
)
TaskEnds = Mapping[tuple[int, str], Sequence[TaskEnd]]


@dataclass
class Verdicts:
    """Deadlines to end, by new state. ``recovered``: by id, when missed ones succeeded."""

    met: list[Row] = field(default_factory=list)
    missed: list[Row] = field(default_factory=list)
    void: list[tuple[Row, str]] = field(default_factory=list)
    recovered: dict[int, datetime] = field(default_factory=dict)


def decide(rows: Sequence[Row], tasks: TaskEnds, now: datetime) -> Verdicts:
    """Judge armed deadlines whose runs or backfills are locked. ``now``: read after the locks."""
    verdicts = Verdicts()
    for row in rows:
        ended, ended_at = how_it_ended(row, tasks)
        watched = Watched(row["due_at"], row["fire_on_failure"], scope_of(row), ended, ended_at, row["superseded"])
        verdict = judge(watched, now)
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
    """Whether the deadline watches a backfill, a run or a task."""
    if row["run_id"] is None:
        return Scope.BACKFILL
    return Scope.RUN if row["task"] is None else Scope.TASK


def how_it_ended(row: Row, tasks: TaskEnds) -> tuple[End | None, datetime | None]:
    """How and when the watched run, task or backfill ended; both ``None`` if it has not."""
    scope = scope_of(row)
    if scope != Scope.TASK and row["staged_at"] is not None and row["run_state"] in _DONE_WHEN_STAGED:
        return End.SUCCEEDED, row["staged_at"]
    match scope:
        case Scope.BACKFILL:
            over = row["run_state"] in BACKFILL_MACHINE.terminal
        case Scope.RUN:
            over = row["run_state"] in RUN_MACHINE.terminal
        case Scope.TASK:
            return _how_task_ended(row, tasks.get((row["run_id"], row["task"]), ()))
    return (End(row["run_state"]), row["ended_at"]) if over else (None, None)


def _how_task_ended(row: Row, attempts: Sequence[TaskEnd]) -> tuple[End | None, datetime | None]:
    """The first success of any attempt counts; other ends only in the newest attempt."""
    successes = [a.finished_at for a in attempts if a.state == TaskState.SUCCEEDED and a.finished_at is not None]
    if successes:
        return End.SUCCEEDED, min(successes)
    newest = max(attempts, key=lambda a: a.attempt, default=None)
    if newest is not None and newest.attempt == row["run_attempt"]:
        if newest.state in (TaskState.FAILED, TaskState.UPSTREAM_FAILED):
            return End.FAILED, newest.finished_at
        if newest.state == TaskState.SKIPPED:
            return End.SKIPPED, newest.finished_at
    # A lost attempt cancels its tasks, and the next runs them again: only the run's end counts.
    if row["run_state"] in RUN_MACHINE.terminal:
        return (End.FAILED if row["run_state"] == End.FAILED else End.CANCELLED), row["ended_at"]
    return None, None


def task_state(attempts: Sequence[TaskEnd]) -> str:
    """The task's state in its newest attempt."""
    newest = max(attempts, key=lambda a: a.attempt, default=None)
    return str(TaskState.NONE if newest is None else newest.state)


def seconds_to_next(earliest: datetime | None, now: datetime, *, more: bool) -> float:
    """Seconds until the next check. ``more``: the batch was full, so others may be due already."""
    return 0.0 if more else seconds_until(earliest, now)
