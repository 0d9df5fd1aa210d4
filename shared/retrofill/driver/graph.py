"""Decides which tasks of a run may start, and which never will. Pure functions.

The trigger rules have the same meaning as in Airflow. A run succeeds only if none of its tasks
failed: a cleanup task that succeeds after a failure does not make the run a success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence

from retrofill.protocol.launch import Task
from retrofill.sdk.names import TriggerRule
from retrofill.states import TASK_RUN_MACHINE, TaskState

S = TaskState
DONE = TASK_RUN_MACHINE.terminal
BAD = frozenset({S.FAILED, S.UPSTREAM_FAILED, S.CANCELLED})
# Only tasks in these states may still be skipped.
NOT_BEGUN = frozenset({S.NONE, S.QUEUED})

States = Mapping[str, TaskState]


class BadBranch(ValueError):
    """A branch returned something other than names of tasks directly after it."""


@dataclass(frozen=True)
class Step:
    """The tasks to queue, and those that end without running."""

    queue: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    upstream_failed: tuple[str, ...] = ()

    @property
    def settled(self) -> dict[str, TaskState]:
        """The tasks that end without running, with their states."""
        return {**dict.fromkeys(self.skip, S.SKIPPED), **dict.fromkeys(self.upstream_failed, S.UPSTREAM_FAILED)}


def next_step(tasks: Sequence[Task], states: States, taken: Mapping[str, frozenset[str]]) -> Step:
    """The next step. ``taken`` has the names that each finished branch returned."""
    now = dict(states)
    not_taken = _not_taken(tasks, taken)
    settled: dict[str, TaskState] = {}
    # A settled task may settle its downstream tasks.
    while True:
        found = {task.name: end for task in tasks if (end := _without_running(task, now, not_taken))}
        if not found:
            break
        now.update(found)
        settled.update(found)
    ready = [task.name for task in tasks if now[task.name] == S.NONE and _verdict(task, now) == S.QUEUED]
    return Step(
        queue=tuple(ready),
        skip=tuple(name for name, end in settled.items() if end == S.SKIPPED),
        upstream_failed=tuple(name for name, end in settled.items() if end == S.UPSTREAM_FAILED),
    )


def choose(tasks: Sequence[Task], branch: str, returned: object) -> frozenset[str]:
    """The names that a branch returned: one, several or ``None``. Raises ``BadBranch``."""
    names = _names(branch, returned)
    after = {task.name for task in tasks if branch in task.after}
    for name in names:
        if name not in after:
            known = ", ".join(sorted(after)) or "none"
            raise BadBranch(f"branch {branch!r} returned {name!r}, which is not a task directly after it: {known}")
    return frozenset(names)


def outcome(states: States) -> TaskState | None:
    """``failed`` or ``succeeded`` once every task is done, ``None`` before."""
    if not all(state in DONE for state in states.values()):
        return None
    return S.FAILED if any(state in BAD for state in states.values()) else S.SUCCEEDED


def _names(branch: str, returned: object) -> list[str]:
    if returned is None:
        return []
    listed = [returned] if isinstance(returned, str) or callable(returned) else returned
    if not isinstance(listed, Iterable):
        raise BadBranch(f"branch {branch!r} returned a {type(returned).__name__}: return names of tasks")
    names: list[str] = []
    for one in listed:
        name = getattr(one, "__name__", one)
        if not isinstance(name, str):
            raise BadBranch(f"branch {branch!r} returned {name!r} among others: return names of tasks")
        names.append(name)
    return names


def _not_taken(tasks: Sequence[Task], taken: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Tasks directly after a branch, except chosen ones and those downstream of them."""
    skipped: set[str] = set()
    for branch, names in taken.items():
        reached = _reached(tasks, names)
        skipped |= {task.name for task in tasks if branch in task.after and task.name not in reached}
    return frozenset(skipped)


def _reached(tasks: Sequence[Task], names: frozenset[str]) -> set[str]:
    """``names`` and all tasks downstream of them."""
    reached = set(names)
    while more := {task.name for task in tasks if task.name not in reached and reached.intersection(task.after)}:
        reached |= more
    return reached


def _without_running(task: Task, states: States, not_taken: frozenset[str]) -> TaskState | None:
    """The state in which the task ends without running, if that is certain now."""
    if states[task.name] not in NOT_BEGUN:
        return None
    if task.name in not_taken:
        return S.SKIPPED
    verdict = _verdict(task, states)
    return verdict if verdict in (S.SKIPPED, S.UPSTREAM_FAILED) else None


def _verdict(task: Task, states: States) -> TaskState:
    """``queued``, ``skipped`` or ``upstream_failed``; ``none`` while the task must wait."""
    before = [states[name] for name in task.after]
    if not before:
        return S.QUEUED
    done = all(state in DONE for state in before)
    bad = any(state in BAD for state in before)
    success = any(state == S.SUCCEEDED for state in before)
    rule = task.trigger_rule
    if rule == TriggerRule.ALL_DONE:
        return S.QUEUED if done else S.NONE
    if rule == TriggerRule.ONE_SUCCESS:
        return S.QUEUED if success else _no_success(done, bad)
    if bad:
        return S.UPSTREAM_FAILED
    if rule == TriggerRule.ALL_SUCCESS and any(state == S.SKIPPED for state in before):
        return S.SKIPPED
    if not done:
        return S.NONE
    return S.SKIPPED if rule == TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS and not success else S.QUEUED


def _no_success(done: bool, bad: bool) -> TaskState:
    if not done:
        return S.NONE
    return S.UPSTREAM_FAILED if bad else S.SKIPPED
