"""Interleavings of time limits with what else may happen to a run, replayed step by step."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.runs import RunStaged
from retrofill_core.contract.topics import RUN_STARTER, Topic
from retrofill_core.domain.pipeline import TaskDefinition
from tests.simulation.schedule import Scenario, run_until
from tests.simulation.scheduler import Process, Task
from tests.simulation.servers import wire
from tests.simulation.steps import ask, drain
from tests.simulation.world import World
from tests.support.definitions import daily

DAYS = 8
# Longer than a run takes that does not hang.
LIMIT = 20.0
SECOND = datetime(2020, 1, 2, tzinfo=UTC)


def begin(
    world: World, mode: str = "each", task: dict[str, Any] | None = None, days: int = DAYS, **limits: Any
) -> Scenario:
    """Request a backfill of eight runs in one batch or range, unless told otherwise."""
    pipeline = daily("p", batch_size=days, batch_mode=mode, max_active_runs=1, **limits)
    if task is not None:
        pipeline = pipeline.model_copy(update={"tasks": (TaskDefinition.model_validate(task),)})
    world.publish(Topic.PIPELINES, "p", PipelineApplied(pipeline=pipeline))
    ask(world, days=days)
    return Scenario(world)


def ended(world: World, scenario: Scenario) -> dict[int, str]:
    """Run until all is done. Returns the states of runs; nothing counts as a loss."""
    drain(world, scenario)
    runs = world.database.rows("run")
    assert {run["lost_attempts"] for run in runs} == {0}
    return {run["id"]: run["state"] for run in runs}


def all_but(*failed: int, days: int = DAYS) -> dict[int, str]:
    return {id: "failed" if id in failed else "succeeded" for id in range(1, days + 1)}


def run_of(world: World, id: int) -> dict[str, Any]:
    return world.oracle.waiting.row("run", "id", id)


def is_marked(world: World, id: int = 2) -> bool:
    return (
        bool(world.database.rows("run"))
        and run_of(world, id)["state"] == "running"
        and run_of(world, id)["error"] is not None
    )


@pytest.mark.parametrize("mode", ["each", "range"])
def test_the_one_that_hangs_fails_alone(world: World, mode: str) -> None:
    world.hanging = {("p", SECOND)}
    scenario = begin(world, mode, run_timeout_seconds=LIMIT)
    assert ended(world, scenario) == all_but(2)
    assert run_of(world, 2)["error"]["type"] == "RunTimedOut"


@pytest.mark.parametrize("mode", ["each", "range"])
def test_a_stopped_driver_does_not_hold_it_up(world: World, mode: str) -> None:
    world.hanging = {("p", SECOND)}
    scenario = begin(world, mode, run_timeout_seconds=LIMIT)
    stopped: list[Process] = []

    def stop(_: Task, __: str) -> None:
        if not stopped and is_marked(world):
            (driver,) = (each for each in world.at_work if 2 in each.at_runs)
            driver.process.frozen = True
            stopped.append(driver.process)

    run_until(world, lambda: any(2 in driver.at_runs for driver in world.at_work))
    world.scheduler.on_step = stop
    assert ended(world, scenario) == all_but(2)
    assert stopped


def test_a_run_starter_that_dies_with_the_driver_leaves_it_to_the_next_one(world: World) -> None:
    world.hanging = {("p", SECOND)}
    scenario = begin(world, run_timeout_seconds=LIMIT)
    run_until(world, lambda: is_marked(world))
    fall_silent(world)
    assert ended(world, scenario) == all_but(2)


def fall_silent(world: World) -> None:
    """The machine of the only run-starter is gone with its drivers. Another one comes."""
    for driver in world.drivers:
        world.scheduler.kill(driver.process)
    world.crash(world.alive(RUN_STARTER)[0], machine=True)
    world.start(RUN_STARTER)


def test_a_part_of_a_range_that_timed_out_stays_what_it_is_when_its_host_falls_silent(world: World) -> None:
    """A range of 16 is divided into two of eight. It is no suspect, and its loss does not count."""
    world.hanging = {("p", SECOND)}
    scenario = begin(world, "range", days=16, run_timeout_seconds=LIMIT)
    run_until(world, lambda: is_marked(world))
    run_until(world, lambda: any(len(driver.at_runs) == 8 for driver in world.at_work))
    (part,) = (driver.at_runs for driver in world.at_work)
    fall_silent(world)
    run_until(world, lambda: any(run_of(world, id)["losses"] for id in part))
    rows = {row["id"]: row for row in world.database.rows("run")}
    assert {row["range_limit"] for row in rows.values()} == {8}
    assert {id for id, row in rows.items() if any(loss["shared"] for loss in row["losses"].get("last", ()))} == part
    assert {row["lost_at"] for row in rows.values()} == {None}
    assert ended(world, scenario) == all_but(2, days=16)
    assert run_of(world, 2)["error"]["type"] == "RunTimedOut"
    sizes = Counter(row["runs"] for row in world.database.rows("attempt") if row["mode"] == "range")
    assert (sizes[16], sizes[8]) == (1, 3)


def test_what_ended_in_time_does_not_fail_though_nobody_read_that_for_long(world: World) -> None:
    scenario = begin(world, run_timeout_seconds=LIMIT)
    run_until(world, lambda: bool(world.database.rows("run")) and run_of(world, 2)["state"] == "running")
    attempt = run_of(world, 2)["attempt_id"]
    world.freeze(world.alive(RUN_STARTER)[0], 100.0)
    run_until(world, lambda: world.oracle.attempts.said[attempt, 2, "RunStaged"] > 0, 90.0)
    assert ended(world, scenario) == all_but()


def test_output_that_is_accepted_after_the_mark_is_published(world: World) -> None:
    """Its driver reports it while it is about to be ended."""
    world.hanging = {("p", SECOND)}
    scenario = begin(world, run_timeout_seconds=LIMIT)
    staged: list[int] = []

    def stage(_: Task, __: str) -> None:
        if not staged and is_marked(world):
            world.hanging = set()
            staged.append(attempt := run_of(world, 2)["attempt_id"])
            about = {"backfill_id": "b", "attempt_id": attempt, "run_id": 2, "attempt": 1}
            report = RunStaged(**about, outputs=("/table/2",))
            world.append(str(Topic.RUN_REPORTS), b"b", report.encode(), wire(report, "driver"))

    run_until(world, lambda: any(2 in driver.at_runs for driver in world.at_work))
    world.scheduler.on_step = stage
    assert ended(world, scenario) == all_but()
    assert staged


@pytest.mark.parametrize("retries", [0, 2])
def test_a_task_that_ends_its_driver_has_as_many_tries_as_others(world: World, retries: int) -> None:
    world.hanging = {("p", SECOND)}
    scenario = begin(world, task={"name": "only", "timeout_seconds": LIMIT, "retries": retries})
    assert ended(world, scenario) == all_but(2)
    assert run_of(world, 2)["error"]["type"] == "TaskTimedOut"
    assert run_of(world, 2)["attempt"] == retries + 1
