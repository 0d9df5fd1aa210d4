"""Interleavings that broke something, each played again step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from retrofill.bus.topics import RUN_STARTER, Topic
from retrofill.messages.backfills import BackfillCancelRequested, BackfillRequested
from retrofill.messages.pipelines import PipelineApplied
from retrofill.store import runs as store
from run_starter.leases import LOOK
from tests.simulation.memory import errors
from tests.simulation.schedule import DRAIN_SECONDS, Scenario, run_until_drained
from tests.simulation.scheduler import Task
from tests.simulation.shims import exchanged
from tests.simulation.world import World
from tests.support.installation import daily


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


def run_until(world: World, over: Callable[[], bool], seconds: float = DRAIN_SECONDS) -> None:
    end = world.scheduler.now + seconds
    world.scheduler.run(lambda: over() or world.scheduler.now >= end)
    assert over()


def test_a_step_of_the_databases_clock_ends_no_lease(world: World) -> None:
    """A driver has nothing to say for less than its lease, which is over by the clock that stepped: it is not given up."""
    scenario = Scenario(world)
    scenario.apply()
    scenario.request()
    # Its first heartbeat was handled, by the clock as it was then.
    run_until(world, lambda: bool(world.at_work) and any(r["state"] == "running" for r in world.database.rows("run")))
    driver = world.at_work[0]
    driver.process.frozen = True
    world.scheduler.at(world.scheduler.now + driver.lease / 2, lambda: setattr(driver.process, "frozen", False))
    world.database.offset += 3600.0
    for instance in world.alive(RUN_STARTER):
        assert instance.loop is not None
        for partition in instance.loop.owned():
            instance.loop._shards[partition].look_at(LOOK, 0.0)
    for notified in world.database.listeners:
        notified(store.RUN_CHANNEL, "0")
    drain(world, scenario)
    (run,) = [run for run in world.database.rows("run") if run["id"] == driver.launch.run_id]
    assert run["attempt"] == 1


def test_a_backfill_ends_though_every_hint_is_lost_for_good(world: World) -> None:
    """``BackfillPlanned`` and all events of runs become dead letters: the rows are looked at all the same."""
    scenario = Scenario(world)
    scenario.apply()
    run_until(world, lambda: bool(world.database.rows("pipeline")))
    world.lost_hints = 1.0
    world.hints = (Topic.BACKFILL_EVENTS, Topic.RUN_EVENTS)
    scenario.request()
    drain(world, scenario)
    assert {row["state"] for row in world.database.rows("backfill")} <= {"succeeded", "failed"}
    lost = {topic for (topic, _), _ in world.broker.unreadable}
    assert {Topic.BACKFILL_EVENTS, Topic.RUN_EVENTS} <= lost


def test_a_definition_that_cannot_be_read_stops_its_own_backfill_only() -> None:
    """A newer release planned it, and the older one took the shard over again: its leases end, and all others go on."""
    with exchanged():
        world = World(next(seed for seed in range(100) if World(seed).partitions == 1))
        for service in world.services:
            world.start(service)
        scenario = Scenario(world)
        for name in ("unreadable", "other"):
            world.publish(Topic.PIPELINES, name, PipelineApplied(pipeline=daily(name)))
            world.publish(
                Topic.BACKFILL_REQUESTS,
                name,
                BackfillRequested.model_validate({"pipeline": name, "from": "2020-01-01", "to": "2020-01-02"}),
            )
        run_until(world, lambda: any(d.launch.backfill_id == "unreadable" for d in world.at_work))
        for row in world.database.tables["backfill"].rows:
            if row.committed["id"] == "unreadable":
                row.committed = {**row.committed, "definition": {"written_by": "a newer release"}}
        world.crash(world.alive(RUN_STARTER)[0], machine=False)
        for driver in world.drivers:
            world.scheduler.kill(driver.process)
        world.start(RUN_STARTER)

        def is_isolated() -> bool:
            states = {row["id"]: row["state"] for row in world.database.rows("backfill")}
            live = [run for run in world.database.rows("run") if run["slot"] and run["backfill_id"] == "unreadable"]
            return states == {"unreadable": "running", "other": "succeeded"} and not live

        run_until(world, is_isolated)
        world.publish(Topic.BACKFILL_REQUESTS, "unreadable", BackfillCancelRequested())
        drain(world, scenario)
        world.close()


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
