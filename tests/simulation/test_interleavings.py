"""Interleavings that the simulation has found, each played again step by step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.memory import errors
from tests.simulation.schedule import DRAIN_SECONDS, Scenario, run_until_drained
from tests.simulation.scheduler import Task
from tests.simulation.shims import exchanged
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with exchanged():
        world = World(0)
        for service in world.services:
            world.start(service)
        yield world
        world.close()


def drain(world: World, scenario: Scenario) -> None:
    run_until_drained(world, scenario, world.scheduler.now + DRAIN_SECONDS)
    world.oracle.check_end()


def test_a_claim_whose_commit_was_not_answered_ends_with_its_lease(world: World) -> None:
    """It has committed, but its drivers were not launched, and the run-starter does not know that there is a lease."""
    lost: list[str] = []

    def lose_the_answer(task: Task, what: str) -> None:
        starting = [run for run in world.database.rows("run") if run["state"] == "starting"]
        if what == "committed" and starting and not lost:
            lost.append(task.process.name)
            raise errors.disconnected("server closed the connection unexpectedly")

    scenario = Scenario(world)
    scenario.apply()
    scenario.request()
    world.scheduler.on_step = lose_the_answer
    drain(world, scenario)
    assert lost == ["run-starter-1"]
    assert any(run["attempt"] == 2 for run in world.database.rows("run"))
