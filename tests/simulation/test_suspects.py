"""The Spark server that all drivers share ends: by itself, or because of one interval, each time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from retrofill_core.contract.topics import RUN_STARTER
from tests.simulation import steps
from tests.simulation.checks.base import Violation
from tests.simulation.mutations import applied
from tests.simulation.schedule import FIRST
from tests.simulation.world import World
from tests.support.tiers import some

SEEDS = range(4)
PIPELINES: dict[str, dict[str, Any]] = {
    "single": {},
    "other": {},
    "batches": {"batch_size": 2},
    "ranges": {"batch_size": 4, "batch_mode": "range"},
}


@pytest.fixture(params=some(SEEDS, 0))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Two backfills that share two run-starters, without other faults."""
    with steps.two_starters(request.param) as world:
        yield world


def begin(world: World, *names: str, days: int = 4) -> None:
    for name in names:
        steps.apply(world, name, **PIPELINES[name])
        steps.ask(world, name, name, days=days, max_active_runs=2)


def drain(world: World) -> dict[tuple[str, Any], dict[str, Any]]:
    """The runs, by backfill and interval, once all have ended."""
    steps.drain(world)
    return {(run["backfill_id"], run["interval_start"]): run for run in world.database.rows("run")}


def _losses(world: World, run_id: int) -> int:
    (losses,) = [run["losses"] for run in world.database.rows("run") if run["id"] == run_id]
    return len(losses.get("last", ()))


@pytest.mark.parametrize("name", PIPELINES)
def test_an_interval_that_ends_the_server_each_time_fails_alone(world: World, name: str) -> None:
    killer = (name, FIRST)
    world.killing = {killer}
    begin(world, *{name, "single", "batches"})
    runs = drain(world)
    failed = runs.pop(killer)
    assert (failed["state"], failed["error"]["type"]) == ("failed", "DriverLost")
    assert failed["lost_attempts"] == world.settings.max_lost_attempts
    # One loss is excused, the next one makes it a suspect, or halves its range. One more does of four runs, and then it counts.
    most = 2 + (name == "ranges") + world.settings.max_lost_attempts
    assert most - 2 <= world.injected["an interval ends Spark"] <= most
    # Others were lost with it, which did not count.
    assert {(run["state"], run["lost_attempts"]) for run in runs.values()} == {("succeeded", 0)}
    of_others = [loss["counted"] for run in runs.values() for loss in run["losses"].get("last", ())]
    assert not any(of_others)


@pytest.mark.long
@pytest.mark.parametrize("name", PIPELINES)
def test_a_server_that_was_away_for_minutes_fails_no_run(world: World, name: str) -> None:
    begin(world, *{name, "single"})
    world.scheduler.run(lambda: len(world.at_work) >= 2)
    world.end_spark(420.0)
    runs = drain(world)
    assert {(run["state"], run["lost_attempts"], run["lost_at"]) for run in runs.values()} == {("succeeded", 0, None)}
    losses = [loss for run in runs.values() for loss in run["losses"].get("last", ())]
    assert losses and all(loss["shared"] for loss in losses)


@pytest.mark.parametrize("name", some(PIPELINES, "ranges"))
def test_the_first_loss_with_a_server_suspects_nobody_and_the_second_all(world: World, name: str) -> None:
    begin(world, name)
    for losses in (1, 2):
        world.scheduler.run(lambda: bool(world.at_work))
        first = min(run for driver in world.at_work for run in driver.at_runs)
        world.end_spark()
        world.scheduler.run(lambda losses=losses, first=first: _losses(world, first) == losses)  # type: ignore[misc]
        (run,) = [run for run in world.database.rows("run") if run["id"] == first]
        suspected = losses == 2
        is_split = run["range_limit"] is not None
        assert (run["lost_at"] is not None, is_split) == (suspected, suspected and name == "ranges"), run
    assert {run["state"] for run in drain(world).values()} == {"succeeded"}


def test_a_suspect_that_may_not_start_is_passed_over(world: World) -> None:
    """While one is retried, runs that nothing was lost with go on, also those of its own backfill."""
    # More than may have ended before two are at work at once.
    begin(world, "single", days=9)
    for _ in range(2):
        world.scheduler.run(lambda: len(world.at_work) >= 2)
        world.end_spark()
    suspects = world.oracle.suspects
    world.scheduler.run(lambda: len(suspects.runs) == 2)

    def live() -> set[int]:
        return {row["id"] for row in world.database.rows("attempt") if row["ended_at"] is None}

    world.scheduler.run(lambda: bool(suspects.live) and len(live()) >= 2)
    runs = {run["id"]: run["attempt_id"] for run in world.database.rows("run") if run["attempt_id"] in live()}
    assert [runs[run] for run in suspects.runs & runs.keys()] == list(suspects.live)
    assert live() - suspects.live.keys()
    assert {run["state"] for run in drain(world).values()} == {"succeeded"}


def take_turns(world: World) -> list[str]:
    """The backfills of suspects in the order of their attempts. Each run of two backfills ends the server each time."""
    world.killing = {(name, day) for name in ("single", "other") for day in (FIRST, FIRST + timedelta(days=1))}
    begin(world, "single", "other", days=2)
    assert {run["state"] for run in drain(world).values()} == {"failed"}
    attempts = sorted(world.database.rows("attempt"), key=lambda row: row["id"])
    return [row["backfill_id"] for row in attempts if row["suspect_server"]]


def test_backfills_take_turns_at_the_server(world: World) -> None:
    """Neither keeps the place while the other waits."""
    turns = take_turns(world)
    assert len(turns) == 4 * world.settings.max_lost_attempts, turns
    assert all(one != other for one, other in pairwise(turns)), turns


def test_a_backfill_that_keeps_the_place_is_found() -> None:
    """Random schedules rarely have two backfills with several suspects each."""
    found = pytest.raises(Violation, match="it was the turn of")
    with applied("suspects_keep_their_place"), steps.two_starters(0) as world, found:
        take_turns(world)


@pytest.mark.parametrize("name", some(PIPELINES, "ranges"))
def test_the_runs_of_a_machine_that_is_gone_are_retried_as_they_were(world: World, name: str) -> None:
    """At the first time. Nothing is retried alone, and no range is split."""
    begin(world, *{name, "single"})
    world.scheduler.run(lambda: len(world.at_work) >= 2)
    (host, *_) = {instance for instance in world.alive(RUN_STARTER) if instance.drivers}
    lost = {driver.launch.attempt_id for driver in host.drivers if driver in world.at_work}
    for driver in host.drivers:
        world.scheduler.kill(driver.process)
    world.crash(host, machine=True)
    world.start(RUN_STARTER)
    runs = drain(world)
    assert {(run["state"], run["lost_attempts"], run["range_limit"]) for run in runs.values()} == {
        ("succeeded", 0, None)
    }
    losses = [loss for run in runs.values() for loss in run["losses"].get("last", ())]
    assert losses and all(loss["shared"] for loss in losses)
    outcomes = {row["id"]: row["outcome"] for row in world.database.rows("attempt")}
    assert {outcomes[id] for id in lost} == {"lost"}
