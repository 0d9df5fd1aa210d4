"""Kafka, Postgres, or both are away for less or more than a lease: which attempts go on, and which end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from retrofill_core.contract.topics import PLANNER, RUN_STARTER
from tests.simulation.schedule import run_until
from tests.simulation.shims import exchanged
from tests.simulation.steps import begin, drain
from tests.simulation.world import World
from tests.support.tiers import some

LEASES = {"a third of a lease": 1 / 3, "three leases": 3.0}
SERVERS = {"kafka": ["kafka"], "postgres": ["postgres"], "both": ["kafka", "postgres"]}


@pytest.fixture(params=some(range(4), 0))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Two run-starters, without other faults."""
    with exchanged():
        world = World(request.param)
        world.settings = world.settings.model_copy(update={"lease_seconds": 12.0})
        world.leases = (12.0,)
        world.late = world.slow = 0.0
        world.services = (PLANNER, RUN_STARTER)
        for service in (PLANNER, RUN_STARTER, RUN_STARTER):
            world.start(service)
        yield world
        world.close()


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("away", LEASES)
def test_what_ends_while_servers_are_away(world: World, servers: str, away: str) -> None:
    """An outage of one server ends nothing, however long; of both, what lasts longer than the lease.

    No run ever has two drivers at work: the oracle looks at each start.
    """
    scenario = begin(world, at_once=2, days=6, max_active_runs=2)
    run_until(world, lambda: len(world.at_work) == 2)
    seconds, began = LEASES[away] * 12.0, [driver.launch.attempt_id for driver in world.at_work]
    for server in SERVERS[servers]:
        getattr(world.servers, f"stop_{server}")(seconds)
    drain(world, scenario)
    attempts: dict[int, dict[str, Any]] = {row["id"]: row for row in world.database.rows("attempt")}
    lost = servers == "both" and away == "three leases"
    assert {attempts[id]["outcome"] for id in began} == ({"lost"} if lost else {"done"})
    assert {row["outcome"] for id, row in attempts.items() if id not in began} == {"done"}
    assert {row["state"] for row in world.database.rows("run")} == {"succeeded"}
    assert sum(row["attempt"] for row in world.database.rows("run")) == 6 + 2 * lost


def test_a_step_of_the_databases_clock_at_the_end_of_an_outage_of_kafka_ends_nothing(world: World) -> None:
    """Hosts have renewed the leases in Postgres, so the owner has not measured a whole one that did not change."""
    scenario = begin(world, at_once=2, days=6, max_active_runs=2)
    run_until(world, lambda: len(world.at_work) == 2)
    world.servers.stop_kafka(36.0)
    world.scheduler.at(world.scheduler.now + 35.9, lambda: world.database.jump(24.0))
    drain(world, scenario)
    assert {row["outcome"] for row in world.database.rows("attempt")} == {"done"}
