"""Small backfills get some of the seats that a large one has, of its shard or not."""

from __future__ import annotations

import pytest

from retrofill.contract.backfills import BackfillRequested
from retrofill.contract.pipelines import PipelineApplied
from retrofill.contract.topics import PLANNER, RUN_STARTER, Topic
from tests.simulation.schedule import run_until
from tests.simulation.shims import exchanged
from tests.simulation.world import World
from tests.support.definitions import daily

SMALL = ("one", "two", "three")
# Of the large one, which has 60 runs, until all small ones have started.
MOST_CLAIMS = 10


@pytest.mark.parametrize("starters", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_small_backfills_start_long_before_a_large_one_ends(seed: int, starters: int) -> None:
    with exchanged():
        world = World(seed)
        try:
            world.services = (PLANNER, RUN_STARTER)
            world.start(PLANNER)
            for _ in range(starters):
                world.start(RUN_STARTER)
            request(world, "large", "2020-02-29")
            run_until(world, lambda: claims(world, "large") == starters * world.settings.driver_slots)
            for name in SMALL:
                request(world, name, "2020-01-01")
            run_until(world, lambda: len(world.database.rows("backfill")) == 1 + len(SMALL))
            before = claims(world, "large")
            run_until(world, lambda: all(claims(world, name) for name in SMALL))
            assert claims(world, "large") - before <= MOST_CLAIMS
        finally:
            world.close()


def request(world: World, name: str, last: str) -> None:
    """Ask for the days until ``last`` of a pipeline that may have every driver."""
    world.publish(Topic.PIPELINES, name, PipelineApplied(pipeline=daily(name, max_active_runs=8)))
    asked = {"pipeline": name, "from": "2020-01-01", "to": last}
    world.publish(Topic.BACKFILL_REQUESTS, name, BackfillRequested.model_validate(asked))


def claims(world: World, backfill: str) -> int:
    return sum(row["backfill_id"] == backfill for row in world.database.rows("attempt"))
