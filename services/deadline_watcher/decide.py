"""The watcher's decisions. Pure: deadlines and the database's time → verdicts and wake-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from retrofill.states import TaskState
from retrofill_core.domain.backfill import MACHINE as BACKFILL_MACHINE
from retrofill_core.domain.backfill import BackfillState as B
from retrofill_core.domain.deadline import DeadlineState, End, Scope, Watched, judge, seconds_until
from retrofill_core.domain.run import MACHINE as RUN_MACHINE
from retrofill_core.domain.run import RunState as R

if TYPE_CHECKING:
    from retrofill_core.store.deadlines import Deadline, TaskEnds

# What was held for a review was done by then, however long the review takes.
_DONE_WHEN_STAGED = frozenset(
    [*(B.RUNNING, B.PAUSED, B.IN_REVIEW, B.SUCCEEDED), *(R.STAGED, R.PUBLISHING, R.SUCCEEDED)]
)


@dataclass
class Verdicts:
    """Deadlines to end, by new state. ``recovered``: by id, when missed ones succeeded."""

    met: list[Deadline] = field(default_factory=list)
    missed: list[Deadline] = field(default_factory=list)
    void: list[tuple[Deadline, str]] = field(default_factory=list)
    recovered: dict[int, datetime] = field(default_factory=dict)


def decide(deadlines: Sequence[Deadline], tasks: TaskEnds, now: datetime) -> Verdicts:
    """Judge armed deadlines whose runs or backfills are locked. ``now``: read after the locks."""
    verdicts = Verdicts()
    for one in deadlines:
        ended, ended_at = how_it_ended(one, tasks)
        watched = Watched(one.due_at, one.fire_on_failure, one.scope, ended, ended_at, one.superseded)
        verdict = judge(watched, now)
        if verdict is None:
            continue
        match verdict.state:
            case DeadlineState.MET:
                verdicts.met.append(one)
            case DeadlineState.MISSED:
                verdicts.missed.append(one)
                if verdict.recovered and ended_at is not None:
                    verdicts.recovered[one.id] = ended_at
            case _:
                verdicts.void.append((one, verdict.reason or ""))
    return verdicts


def how_it_ended(one: Deadline, tasks: TaskEnds) -> tuple[End | None, datetime | None]:
    """How and when the watched run, task or backfill ended; both ``None`` if it has not."""
    if one.scope == Scope.TASK:
        return _how_task_ended(one, tasks)
    if one.staged_at is not None and one.run_state in _DONE_WHEN_STAGED:
        return End.SUCCEEDED, one.staged_at
    machine = BACKFILL_MACHINE if one.scope == Scope.BACKFILL else RUN_MACHINE
    return (End(one.run_state), one.ended_at) if one.run_state in machine.terminal else (None, None)


def _how_task_ended(one: Deadline, tasks: TaskEnds) -> tuple[End | None, datetime | None]:
    """The first success of any attempt counts; other ends only in the newest attempt."""
    attempts = tasks.get((one.run_id, one.task), ())
    successes = [a.finished_at for a in attempts if a.state == TaskState.SUCCEEDED and a.finished_at is not None]
    if successes:
        return End.SUCCEEDED, min(successes)
    newest = max(attempts, key=lambda a: a.attempt, default=None)
    if newest is not None and newest.attempt == one.run_attempt:
        if newest.state in (TaskState.FAILED, TaskState.UPSTREAM_FAILED):
            return End.FAILED, newest.finished_at
        if newest.state == TaskState.SKIPPED:
            return End.SKIPPED, newest.finished_at
    # A lost attempt cancels its tasks, and the next runs them again: only the run's end counts.
    if one.run_state in RUN_MACHINE.terminal:
        return (End.FAILED if one.run_state == End.FAILED else End.CANCELLED), one.ended_at
    return None, None


def state_of(one: Deadline, tasks: TaskEnds) -> str:
    """The state of the watched run or backfill, or of the task in its newest attempt."""
    if one.scope != Scope.TASK:
        return one.run_state
    newest = max(tasks.get((one.run_id, one.task), ()), key=lambda a: a.attempt, default=None)
    return str(TaskState.NONE if newest is None else newest.state)


def seconds_to_next(earliest: datetime | None, now: datetime, *, more: bool) -> float:
    """Seconds until the next check. ``more``: the batch was full, so others may be due already."""
    return 0.0 if more else seconds_until(earliest, now)
