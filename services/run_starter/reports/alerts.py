"""Arms deadlines that count from the start of a run or task, and resolves those of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from retrofill.states import TASK_RUN_MACHINE as TASK_MACHINE
from retrofill.states import AttemptMode, TaskState
from retrofill_core.bus.transaction import Transaction
from retrofill_core.deadlines import Armer, Subject, last_runtimes, resolve
from retrofill_core.domain.deadline import (
    AT_RUN_START,
    AT_TASK_START,
    Arming,
    DeadlineAlert,
    Reference,
    alerts_counting_from,
    arm,
    arm_by_average,
    check_handled,
)
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store import deadlines
from retrofill_core.store.rows import Attempt, Run, present
from run_starter.definitions import Definitions
from run_starter.reports.steps import TaskStep


@dataclass(frozen=True)
class Starts:
    """The starts in one batch of reports. ``attempts``, ``rows``: the locked attempts and runs by id."""

    tx: Transaction
    attempts: Mapping[int, Attempt]
    rows: Mapping[int, Run]
    definitions: Definitions
    partitions: int
    now: datetime

    def of_runs(self, started: Sequence[int]) -> None:
        """Arm the deadlines of runs that started for the first time."""
        runs = self._by_backfill(started)
        for backfill_id, definition in self.definitions.of(self.tx.conn, runs).items():
            ids = runs[backfill_id]
            armer = self._armer(backfill_id, definition.name)
            for alert in alerts_counting_from(definition.deadlines, *AT_RUN_START):
                arming = _AT_RUN_START[alert.reference](self, alert, self.rows[ids[0]].pipeline_no)
                armer.arm(alert, [Subject(id, arming(self._in_one_go(id))) for id in ids])

    def of_tasks(self, steps: Sequence[TaskStep]) -> None:
        """Arm the deadlines of started tasks, once per run, and resolve those of ended ones."""
        started: dict[str, list[int]] = {}
        for step in steps:
            if step.to == TaskState.RUNNING:
                started.setdefault(step.task, []).append(step.run_id)
        for task, run_ids in started.items():
            runs = self._by_backfill(dict.fromkeys(run_ids))
            for backfill_id, definition in self.definitions.of(self.tx.conn, runs).items():
                ids = runs[backfill_id]
                armer = self._armer(backfill_id, definition.name)
                for alert in alerts_counting_from(definition.deadlines, *AT_TASK_START):
                    if alert.task == task:
                        arming = arm(alert, self.now, self.now)
                        armer.arm(alert, [Subject(id, arming) for id in ids])
        ended = {(step.run_id, step.task) for step in steps if step.to in TASK_MACHINE.terminal}
        definitions = self.definitions.of(self.tx.conn, self._by_backfill({run_id for run_id, _ in ended}))
        watched = [pair for pair in ended if self._is_watched(definitions, *pair)]
        if watched:
            resolve(self.tx, deadlines.open_of_tasks(self.tx.conn, watched))

    def _is_watched(self, definitions: Mapping[str, PipelineDefinition], run_id: int, task: str) -> bool:
        definition = definitions.get(self.rows[run_id].backfill_id)
        # Without a readable definition, the deadline rows decide.
        return definition is None or any(alert.task == task for alert in definition.deadlines)

    def _in_one_go(self, run_id: int) -> int:
        """How many runs are executed in one go with this one."""
        row = self.attempts[present(self.rows[run_id].attempt_id)]
        return row.runs if row.mode == AttemptMode.RANGE else 1

    def _armer(self, backfill_id: str, pipeline: str) -> Armer:
        return Armer(self.tx, backfill_id, pipeline, self.partitions, self.now)

    def _by_backfill(self, run_ids: Iterable[int]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for id in run_ids:
            found.setdefault(self.rows[id].backfill_id, []).append(id)
        return found


def _by_start(starts: Starts, alert: DeadlineAlert, _: int) -> Callable[[int], Arming]:
    arming = arm(alert, starts.now, starts.now)
    return lambda _: arming


def _by_average(starts: Starts, alert: DeadlineAlert, pipeline_no: int) -> Callable[[int], Arming]:
    runtimes = last_runtimes(starts.tx.conn, pipeline_no, alert.last_n or 1)
    return cache(lambda runs: arm_by_average(alert, runtimes, starts.now, runs))


# How alerts are armed when runs of a pipeline start, by reference: from how many are executed in
# one go.
_AT_RUN_START: dict[Reference, Callable[[Starts, DeadlineAlert, int], Callable[[int], Arming]]] = {
    Reference.RUN_STARTED_AT: _by_start,
    Reference.AVERAGE_RUNTIME: _by_average,
}
check_handled(_AT_RUN_START, AT_RUN_START)
check_handled([Reference.TASK_STARTED_AT], AT_TASK_START)
