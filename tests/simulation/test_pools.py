"""Runs of a pool wait for a run-starter that serves it, and hold nobody up meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrofill_core.contract.topics import PLANNER, RUN_STARTER
from tests.simulation.schedule import run_until
from tests.simulation.shims import exchanged
from tests.simulation.steps import apply, ask, drain
from tests.simulation.world import World


@pytest.fixture(params=range(4))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A run-starter of the default pool, and one backfill of each pool."""
    with exchanged():
        world = World(request.param)
        world.services = (PLANNER, RUN_STARTER)
        world.pools.several = True
        world.start(PLANNER)
        world.start(RUN_STARTER, ["default"])
        for pool in ("default", "other"):
            apply(world, pool, pool=pool, max_active_runs=3)
            ask(world, pool, pool, days=6)
        yield world
        world.close()


def states(world: World, backfill: str) -> list[str]:
    return sorted(run["state"] for run in world.database.rows("run") if run["backfill_id"] == backfill)


def test_what_nobody_serves_waits_until_somebody_does(world: World) -> None:
    run_until(world, lambda: states(world, "default") == ["succeeded"] * 6)
    assert states(world, "other") == ["queued"] * 6
    assert [row["pool"] for row in world.database.rows("seat_wait")] == ["other"]
    world.start(RUN_STARTER, ["other", "default"])
    drain(world)
    assert states(world, "other") == ["succeeded"] * 6
    hosts = {row["id"]: row["pool"] for row in world.database.rows("host")}
    assert {hosts[row["host_id"]] for row in world.database.rows("attempt") if row["backfill_id"] == "other"} == {
        "other"
    }


def test_the_pool_with_one_seat_has_one_driver(world: World) -> None:
    world.start(RUN_STARTER, ["other"])
    most = 0

    def busy() -> bool:
        nonlocal most
        most = max(
            most,
            sum(row["slot"] is not None and row["backfill_id"] == "other" for row in world.database.rows("attempt")),
        )
        return states(world, "other") == ["succeeded"] * 6

    run_until(world, busy)
    assert most == 1
