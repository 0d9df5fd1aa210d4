"""Failed runs and ended backfills are called once each, also if those who insert or call them crash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from retrofill_core.contract.topics import CALLBACK_RUNNER, PLANNER, RUN_STARTER
from retrofill_core.store import listed
from tests.simulation import steps
from tests.simulation.mutations.watching import failures_join_without_a_lock
from tests.simulation.schedule import FIRST, run_until
from tests.simulation.shims import exchanged
from tests.simulation.world import ALL, World

SEEDS = range(3)
DAYS = 4
# Of the callbacks that join failures.
WINDOW_SECONDS = 2
# In these the runner hears of a callback before the second failure.
HEARD_IN_TIME = (1, 3, 6, 7)


@pytest.fixture(params=SEEDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """All services, and a backfill of which all runs but one fail."""
    with exchanged():
        world = World(request.param)
        world.services = ALL
        for service in ALL:
            world.start(service)
        world.failing = {("p", FIRST + timedelta(days=n)) for n in range(1, DAYS)}
        lists: dict[str, Any] = {
            "on_run_failed": [
                {"callback": "page", "digest_seconds": WINDOW_SECONDS},
                {"callback": "page", "digest_seconds": 0},
            ],
            "on_backfill_failed": [{"callback": "page"}],
            "on_backfill_succeeded": [{"callback": "page"}],
        }
        steps.apply(world, max_active_runs=2, **lists)
        steps.ask(world, days=DAYS)
        yield world
        world.close()


def drain(world: World) -> None:
    """Run to the end: each failed run is in one callback of each place, and one end is called."""
    steps.drain(world)
    rows = world.database.rows("callback")
    assert {row["state"] for row in rows} == {"succeeded"}
    assert [row["occasion"] for row in rows if row["occasion"] != "run_failed"] == ["backfill_failed"]
    failed = {run["id"] for run in world.database.rows("run") if run["state"] == "failed"}
    assert len(failed) == DAYS - 1
    for place in (0, 1):
        told = [
            each["run_id"]
            for row in rows
            if (row["occasion"], row["place"]) == ("run_failed", place)
            for each in row["event"]["failed"]
        ]
        assert sorted(told) == sorted(failed)


def test_without_faults(world: World) -> None:
    drain(world)


@pytest.mark.parametrize("service", [PLANNER, RUN_STARTER, CALLBACK_RUNNER], ids=lambda service: service.name)
def test_a_service_crashes_at_the_first_failure(world: World, service: object) -> None:
    run_until(world, lambda: any(run["state"] == "failed" for run in world.database.rows("run")))
    for instance in world.alive(service):  # type: ignore[arg-type]
        world.crash(instance, machine=False)
        world.start(instance.service)
    drain(world)


def test_the_runner_is_away_while_runs_fail(world: World) -> None:
    """Then all failures are one call, however many there are."""
    for instance in world.alive(CALLBACK_RUNNER):
        world.crash(instance, machine=False)
    run_until(world, lambda: any(row["state"] == "failed" for row in world.database.rows("backfill")))
    together = [row for row in world.database.rows("callback") if row["collects"] and row["place"] == 0]
    assert len(together) == 1
    world.start(CALLBACK_RUNNER)
    drain(world)


def pause_while_a_failure_joins(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pause the handling of one failure, between finding a callback and joining it, until that is due.

    Returns the moments of pauses, which is empty at first.
    """
    # What is due is called at once.
    world.call_seconds = 0.0
    find, paused = listed.collecting, list[float]()

    def find_and_pause(conn: Connection, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        found = find(conn, places)
        if found and not paused:
            paused.append(world.scheduler.now)
            world.scheduler.wait(object(), WINDOW_SECONDS + 1.0)
        return found

    monkeypatch.setattr(listed, "collecting", find_and_pause)
    return paused


@pytest.mark.parametrize("world", HEARD_IN_TIME, indirect=True)
def test_a_failure_that_joins_slowly_is_called(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = pause_while_a_failure_joins(world, monkeypatch)
    drain(world)
    assert paused


@pytest.mark.parametrize("world", HEARD_IN_TIME, indirect=True)
def test_a_failure_that_joins_slowly_is_lost_without_a_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failures_join_without_a_lock(monkeypatch.setattr)
    paused = pause_while_a_failure_joins(world, monkeypatch)
    with pytest.raises(AssertionError):
        drain(world)
    assert paused
