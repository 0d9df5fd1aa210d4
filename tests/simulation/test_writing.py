"""Runs that write the same place take turns: across pipelines, shards and pools, all places or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from retrofill_core.contract.topics import RUN_STARTER
from tests.simulation.schedule import run_until
from tests.simulation.steps import apply, ask, drain, two_starters
from tests.simulation.world import World
from tests.support.definitions import key_on
from tests.support.tiers import some


@pytest.fixture(params=some(range(6), 0, 1))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with two_starters(request.param) as world:
        yield world


def begin(world: World, writes: dict[str, tuple[str, ...]], days: int = 4, **more: Any) -> None:
    for n, (name, names) in enumerate(writes.items()):
        apply(world, name, writes=names, max_active_runs=3, **more)
        # In different shards, if there are several.
        ask(world, f"{name}-{key_on(n % world.partitions, world.partitions)}", name, days=days)


def attempts(world: World) -> list[dict[str, Any]]:
    return sorted(world.database.rows("attempt"), key=lambda row: row["id"])


def pipeline_of(row: dict[str, Any]) -> str:
    return str(row["backfill_id"]).partition("-")[0]


def states(world: World) -> set[str]:
    return {run["state"] for run in world.database.rows("run")}


def test_pipelines_that_write_the_same_alternate(world: World) -> None:
    begin(world, {"p": ("orders",), "q": ("orders",)})
    drain(world)
    assert states(world) == {"succeeded"}
    order = [pipeline_of(row) for row in attempts(world)]
    # While both wait, neither has two turns in a row.
    both = order[: min(len(order) - order[::-1].index(name) for name in "pq")]
    twice = [n for n in range(1, len(both)) if both[n - 1] == both[n]]
    assert len(twice) <= 2, order


def test_several_places_are_taken_together_and_nobody_starves(world: World) -> None:
    begin(world, {"p": ("a", "b"), "q": ("b", "c"), "r": ("c", "a"), "s": ("d",), "t": ()})
    drain(world)
    assert states(world) == {"succeeded"}


def test_a_place_is_free_once_the_lease_of_a_lost_writer_has_ended(world: World) -> None:
    begin(world, {"p": ("orders",), "q": ("orders",)}, days=1)
    run_until(world, lambda: bool(world.at_work))
    # Its host is gone with it, so nobody reports it.
    for instance in world.alive(RUN_STARTER):
        world.crash(instance, machine=True)
    world.start(RUN_STARTER)
    drain(world)
    assert states(world) == {"succeeded"}


def test_batches_and_ranges_hold_their_place_until_they_end(world: World) -> None:
    begin(world, {"p": ("orders",), "q": ("orders",)}, batch_size=3, batch_mode="range")
    drain(world)
    assert states(world) == {"succeeded"}


def test_who_does_not_take_its_turn_holds_nobody_up(world: World) -> None:
    """Its pool has no host."""
    world.pools.several = True
    apply(world, "q", writes=("orders",), pool="other")
    ask(world, "q", "q", days=2)
    run_until(world, lambda: len(world.database.rows("run")) == 2)
    begin(world, {"p": ("orders",)})
    run_until(
        world,
        lambda: {run["state"] for run in world.database.rows("run") if run["backfill_id"] != "q"} == {"succeeded"},
    )
    assert {run["state"] for run in world.database.rows("run") if run["backfill_id"] == "q"} == {"queued"}
    world.start(RUN_STARTER, ["other"])
    drain(world)
    assert states(world) == {"succeeded"}
