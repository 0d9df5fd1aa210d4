"""Interleavings that the simulation has found, each played again step by step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrofill.bus.topics import Topic
from retrofill.messages.backfills import BackfillCancelRequested
from tests.simulation.memory import errors
from tests.simulation.schedule import DRAIN_SECONDS, Scenario, run_until_drained
from tests.simulation.scheduler import Task
from tests.simulation.servers import LOST, body_of
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


@pytest.mark.parametrize("kind", ["BackfillPlanned", "BackfillCancelling", "RunSucceeded", "RunCancelled"])
def test_a_message_that_became_a_dead_letter_does_no_harm(world: World, kind: str) -> None:
    """It only says where to look, and its reader looks there without it, though nobody takes a shard over."""

    def spoil(topic: str, headers: list[tuple[str, bytes | None]], value: bytes | None) -> bytes | None:
        if body_of(value).get("type") != kind or topic not in (Topic.BACKFILL_EVENTS, Topic.RUN_EVENTS):
            return value
        world.lost[(dict(headers)["ce_id"] or b"").decode()] = value or b""
        return LOST

    world.broker.spoil = spoil
    scenario = Scenario(world)
    scenario.apply()
    scenario.request()
    if "Cancel" in kind:
        world.publish(Topic.BACKFILL_REQUESTS, scenario.ids[0], BackfillCancelRequested())
    drain(world, scenario)
    assert world.lost, f"there was no {kind}"
