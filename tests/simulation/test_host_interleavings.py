"""Attempts that are given to other hosts: what happens between the choice and the launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from retrofill_core.contract.topics import RUN_STARTER
from tests.simulation.schedule import Scenario, run_until
from tests.simulation.services import Instance
from tests.simulation.shims import exchanged
from tests.simulation.steps import begin, drain
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """One shard, three replicas that stop slowly, and drivers that start at once."""
    with exchanged():
        world = World(next(seed for seed in range(100) if World(seed).partitions == 1))
        world.settings = world.settings.model_copy(update={"driver_slots": 1, "drain_seconds": 60.0})
        world.start_seconds = 0.0
        for service in world.services:
            world.start(service)
        for _ in range(2):
            world.start(RUN_STARTER)
        run_until(world, lambda: seats(world, warm=True) == 3)
        yield world
        world.close()


def seats(world: World, **values: Any) -> int:
    """The number of seats with these values."""
    return sum(values.items() <= row.items() for row in world.database.rows("seat"))


def owner(world: World) -> Instance:
    return next(each for each in world.alive(RUN_STARTER) if each.loop is not None and each.loop.owned())


def others(world: World) -> list[Instance]:
    return [each for each in world.alive(RUN_STARTER) if each is not owner(world)]


def given(world: World) -> Scenario:
    """A backfill of three runs, of which two were given to hosts that stand still."""
    run_until(world, lambda: any(each.loop is not None and each.loop.owned() for each in world.alive(RUN_STARTER)))
    for each in others(world):
        each.process.frozen = True
    scenario = begin(world, at_once=3, max_active_runs=3)
    run_until(world, lambda: unacknowledged(world) == 2)
    return scenario


def unacknowledged(world: World) -> int:
    return sum(row["attempt_id"] is not None and row["acknowledged_at"] is None for row in world.database.rows("seat"))


def outcomes(world: World) -> list[str]:
    return sorted(row["outcome"] for row in world.database.rows("attempt"))


def began(world: World) -> set[tuple[int, int]]:
    """How often runs began, and how many losses count."""
    return {(row["attempt"], row["lost_attempts"]) for row in world.database.rows("run")}


def test_a_host_that_dies_before_it_takes_an_attempt_over_costs_nothing(world: World) -> None:
    scenario = given(world)
    for each in others(world):
        world.crash(each, machine=False)
        world.start(RUN_STARTER)
    drain(world, scenario)
    assert outcomes(world) == ["done"] * 3 + ["released"] * 2
    assert began(world) == {(1, 0)}


def test_a_host_that_wakes_up_after_its_attempt_was_taken_back_does_nothing(world: World) -> None:
    scenario = given(world)
    run_until(world, lambda: unacknowledged(world) == 0)
    for each in others(world):
        each.process.frozen = False
    drain(world, scenario)
    assert outcomes(world) == ["done"] * 3 + ["released"] * 2
    assert began(world) == {(1, 0)}


def test_a_host_that_wakes_up_in_time_takes_it_over_for_another_owner(world: World) -> None:
    scenario = given(world)
    waiting = {row["attempt_id"] for row in world.database.rows("seat") if row["acknowledged_at"] is None} - {None}
    world.crash(owner(world), machine=False)
    for each in world.alive(RUN_STARTER):
        each.process.frozen = False
    run_until(world, lambda: unacknowledged(world) == 0)
    drain(world, scenario)
    # That of the host that crashed may have been given to it again.
    taken_over = [row["outcome"] for row in world.database.rows("attempt") if row["id"] in waiting]
    assert taken_over == ["done"] * 2
    assert {row["state"] for row in world.database.rows("run")} == {"succeeded"}


def test_a_replica_that_stops_finishes_what_it_began_and_gives_back_the_rest(world: World) -> None:
    scenario = given(world)
    for each in others(world):
        each.stop()
        each.process.frozen = False
    assert len(world.alive(RUN_STARTER)) == 3
    drain(world, scenario)
    assert [each.name for each in world.alive(RUN_STARTER)] == [owner(world).name]
    assert set(outcomes(world)) <= {"done", "released"}
    assert began(world) == {(1, 0)}


def test_a_host_that_was_silent_for_long_has_all_its_seats_again() -> None:
    """Another one registered meanwhile. It deleted the free seats, but not the one with an attempt."""
    with exchanged():
        world = World(next(seed for seed in range(100) if World(seed).partitions == 1))
        world.settings = world.settings.model_copy(update={"driver_slots": 3})
        for service in world.services:
            world.start(service)
        scenario = begin(world)
        run_until(world, lambda: bool(world.at_work))
        (silent,) = world.alive(RUN_STARTER)
        silent.process.frozen = True
        world.database.offset += 3600.0
        world.start(RUN_STARTER)
        run_until(world, lambda: len(world.database.rows("host")) == 2)
        assert seats(world, host_id=1) == 1
        silent.process.frozen = False
        drain(world, scenario)
        assert [seats(world, host_id=id) for id in (1, 2)] == [3, 3]
        world.close()


def test_seats_that_become_free_elsewhere_are_used_by_the_only_owner(world: World) -> None:
    scenario = begin(world, at_once=3, days=9, max_active_runs=3)
    drain(world, scenario)
    by_host = {row["host"] for row in world.database.rows("attempt")}
    assert len(by_host) == 3
    assert outcomes(world) == ["done"] * 9
