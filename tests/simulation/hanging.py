"""User code that does not end by itself, and the limits of pipelines that have such code."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from retrofill.protocol.launch import LaunchedRun
from retrofill.states import TASK_TIMED_OUT
from retrofill_core.contract.runs import ErrorInfo
from retrofill_core.domain.pipeline import PipelineDefinition, TaskDefinition
from run_starter.executors import TimedOut

if TYPE_CHECKING:
    from tests.simulation.drivers import Driver

KINDS = ("run", "task", None, None, None)


def limited(definition: PipelineDefinition, kind: str | None, chance: random.Random) -> PipelineDefinition:
    """The pipeline with a limit for its runs (``run``) or for its first task (``task``)."""
    more: dict[str, Any] = {}
    if kind == "run":
        more = {"run_timeout_seconds": chance.choice([1.0, 3.0, 8.0])}
    if kind == "task":
        first, *others = definition.tasks
        limits = {"timeout_seconds": chance.choice([1.0, 3.0]), "retries": chance.choice([0, 1, 2])}
        more = {"tasks": (first.model_copy(update=limits), *others)}
    return definition.model_copy(update=more)


def hang(driver: Driver, runs: Sequence[LaunchedRun], task: TaskDefinition) -> bool:
    """A task that does not end until its driver is ended, or ends itself because of the task's limit.

    Returns ``False``: the driver reports nothing more.
    """
    scheduler, world = driver.world.scheduler, driver.world
    world.injected["user code hangs"] += 1
    left = inf if task.timeout_seconds is None else task.timeout_seconds * len(runs)
    while left > 0:
        pause = min(left, driver.lease / 5)
        scheduler.wait(object(), pause)
        left -= pause
        # Without its host a driver ends, whatever its code does: a thread of its own reads what the host sends.
        if not (driver.beat() and driver.executor.process.alive):
            return False
    if not driver.process.cut and not world.broker.down:
        # All its reports are acknowledged, so it may say what its host is to report.
        number = runs[0].tries.get(task.name, 0) + 1
        driver.timed_out = TimedOut(task.name, number, ErrorInfo(type=TASK_TIMED_OUT, message="it hangs"))
    return False
