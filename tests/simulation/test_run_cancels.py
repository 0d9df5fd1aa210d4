"""Interleavings of the cancel of one run with what else may happen to it, replayed step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from retrofill.protocol.launch import LaunchedRun
from retrofill_core.contract.backfills import BackfillPauseRequested, BackfillResumeRequested, RunCancelRequested
from retrofill_core.contract.topics import RUN_STARTER, Topic
from tests.simulation import steps
from tests.simulation.drivers import Driver
from tests.simulation.schedule import Scenario, run_until
from tests.simulation.scheduler import Task
from tests.simulation.world import World

DAYS = 8


def begin(world: World, mode: str = "each") -> Scenario:
    """Request a backfill of eight runs in batches of four or ranges of eight, one after another."""
    return steps.begin(world, days=DAYS, batch_size=DAYS, batch_mode=mode)


def cancel(world: World, *runs: int) -> None:
    world.publish(Topic.BACKFILL_REQUESTS, "b", RunCancelRequested(run_ids=runs))


def ended(world: World, scenario: Scenario) -> dict[int, str]:
    """Run until all is done. Returns the state of each run. Nothing counts as a loss."""
    steps.drain(world, scenario)
    runs = world.database.rows("run")
    assert {(run["lost_attempts"], run["range_limit"]) for run in runs} == {(0, None)}
    assert world.database.rows("backfill")[0]["state"] == "failed"
    return {run["id"]: run["state"] for run in runs}


def all_but(*cancelled: int) -> dict[int, str]:
    return {id: "cancelled" if id in cancelled else "succeeded" for id in range(1, DAYS + 1)}


def hold(world: World) -> None:
    """Wait until user code runs, which then takes until its process is ended."""
    run_until(world, lambda: bool(world.at_work))
    world.at_work[0].process.frozen = True


def released(world: World) -> list[dict[str, Any]]:
    return [row for row in world.database.rows("attempt") if row["outcome"] == "released"]


@pytest.mark.parametrize("mode", ["each", "range"])
def test_a_driver_that_dies_when_it_is_to_be_released_loses_nothing(world: World, mode: str) -> None:
    died: list[int] = []

    def die(task: Task, what: str) -> None:
        for row in world.database.rows("attempt"):
            if row["release_requested"] and row["state"] != "ended" and not died:
                died.append(row["id"])
                for driver in [d for d in world.drivers if d.launch.attempt_id == row["id"]]:
                    driver.die("killed")

    scenario = begin(world, mode)
    hold(world)
    world.scheduler.on_step = die
    cancel(world, 2)
    assert ended(world, scenario) == all_but(2)
    assert died and [row["id"] for row in released(world)] == died


@pytest.mark.parametrize("mode", ["each", "range"])
def test_a_run_starter_that_dies_with_the_driver_leaves_the_cancel_to_the_next_one(world: World, mode: str) -> None:
    """The lease ends, and counts for nobody."""
    scenario = begin(world, mode)
    hold(world)
    cancel(world, 1)
    run_until(world, lambda: any(row["release_requested"] for row in world.database.rows("attempt")))
    for driver in world.drivers:
        world.scheduler.kill(driver.process)
    world.crash(world.alive(RUN_STARTER)[0], machine=False)
    world.start(RUN_STARTER)
    assert ended(world, scenario) == all_but(1)
    assert len(released(world)) == 1


def test_queued_runs_of_a_paused_backfill_are_cancelled_while_it_is_paused(world: World) -> None:
    scenario = begin(world)
    run_until(world, lambda: bool(world.database.rows("run")))
    world.publish(Topic.BACKFILL_REQUESTS, "b", BackfillPauseRequested())
    run_until(world, lambda: world.database.rows("backfill")[0]["state"] == "paused")
    cancel(world, 7, 8)
    run_until(world, lambda: [r["id"] for r in world.database.rows("run") if r["state"] == "cancelled"] == [7, 8])
    assert world.database.rows("backfill")[0]["state"] == "paused"
    assert ended(world, scenario) == all_but(7, 8)


def test_a_cancel_whose_hint_is_lost_is_applied_before_the_run_starts(world: World) -> None:
    steps.lose(world, "RunCancelAccepted")
    scenario = begin(world)
    run_until(world, lambda: bool(world.at_work))
    cancel(world, 8)
    assert ended(world, scenario) == all_but(8)
    assert world.lost and not released(world)


@pytest.mark.parametrize("chunk", [1, 2, 3, 6, 7])
def test_a_command_for_more_runs_than_one_check_cancels_lets_none_of_them_start(
    world: World, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr("run_starter.claims.cancelling.CANCEL_CHUNK", chunk)
    # Those that a claim would take first, and only by its own look.
    steps.lose(world, "RunCancelAccepted")
    steps.apply(world, max_active_runs=8)
    steps.ask(world, days=DAYS, start_paused=True)
    run_until(world, lambda: bool(world.database.rows("run")))
    cancel(world, *range(1, 7))
    world.publish(Topic.BACKFILL_REQUESTS, "b", BackfillResumeRequested())
    steps.drain(world)
    runs = world.database.rows("run")
    assert {run["id"]: run["state"] for run in runs} == all_but(*range(1, 7))
    assert [run["id"] for run in runs if run["started_at"]] == [7, 8]


def test_a_run_that_is_accepted_before_its_driver_ends_is_published(world: World) -> None:
    """The planner takes the cancel of a running run, which stages its output before the check."""
    scenario = begin(world)

    def is_staged() -> bool:
        return world.oracle.attempts.said[1, 2, "RunStaged"] > 0

    (starter,) = world.alive(RUN_STARTER)
    working = world.working

    def freeze_at_the_second(driver: Driver, runs: Sequence[LaunchedRun]) -> None:
        working(driver, runs)
        starter.process.frozen = runs[0].id == 2

    world.working = freeze_at_the_second  # type: ignore[method-assign]
    run_until(world, lambda: starter.process.frozen)
    cancel(world, 2)
    run_until(world, lambda: bool(world.database.rows("run_cancel")) and is_staged())
    starter.process.frozen = False
    steps.drain(world, scenario)
    assert {run["state"] for run in world.database.rows("run")} == {"succeeded"}
    assert world.database.rows("backfill")[0]["state"] == "succeeded"
