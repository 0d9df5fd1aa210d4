"""A message that kills every process that handles it is set aside, and its partition continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from backfill_planner.handler import PlannerHandler
from retrofill_core.bus.handler import Received
from retrofill_core.bus.takeover import DEATHS
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import PLANNER, Topic
from tests.simulation.schedule import Scenario, run_until
from tests.simulation.steps import drain
from tests.simulation.world import World
from tests.support.definitions import daily

KILLER = "killer"


def request(world: World, id: str, year: int) -> None:
    body = {"pipeline": "p0", "from": f"{year}-01-01", "to": f"{year}-01-01"}
    world.publish(Topic.BACKFILL_REQUESTS, id, BackfillRequested.model_validate(body), partition=0)


def planner_dies_of(world: World, patch: pytest.MonkeyPatch, killer: str) -> Counter[int]:
    """Crash and replace every planner that handles ``killer``.

    Returns the number of crashes by batch size.
    """
    handle = PlannerHandler.handle
    deaths: Counter[int] = Counter()

    def dying(self: PlannerHandler, tx: Any, received: Sequence[Received]) -> None:
        if killer in [one.key for one in received]:
            deaths[len(received)] += 1
            (instance,) = world.alive(PLANNER)
            world.scheduler.at(world.scheduler.now + 1.0, lambda: world.start(PLANNER))
            world.crash(instance, machine=False)
            world.scheduler.step("dies")
        handle(self, tx, received)

    patch.setattr(PlannerHandler, "handle", dying)
    return deaths


def is_set_aside_alone(world: World, scenario: Scenario, deaths: Counter[int]) -> None:
    """The oracle sees to it that the others are answered."""
    run_until(world, lambda: bool(world.broker.read(str(Topic.DEAD_LETTERS))))
    drain(world, scenario)
    (letter,) = (entry for _, _, entry in world.broker.read(str(Topic.DEAD_LETTERS)))
    sent = [entry for topic in PLANNER.reads for _, _, entry in world.broker.read(str(topic))]
    assert [letter.value] == [entry.value for entry in sent if entry.key == letter.key == KILLER.encode()]
    assert f"died {DEATHS} times" in dict(letter.headers)["retrofill_reason"].decode()  # type: ignore[union-attr]
    # At most two crashes in a batch with other messages: the shard made progress in between.
    assert (deaths[1] >= DEATHS, sum(deaths.values()) <= DEATHS + 2) == (True, True)


def test_a_message_that_ends_its_process_is_set_aside_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = planner_dies_of(world, monkeypatch, KILLER)
    scenario = Scenario(world)
    scenario.apply("p0")
    for n, id in enumerate(("before-1", "before-2", KILLER, "after-1", "after-2")):
        request(world, id, 2001 + n)
    is_set_aside_alone(world, scenario, deaths)
    assert {row["id"] for row in world.database.rows("backfill")} == {"before-1", "before-2", "after-1", "after-2"}


def test_one_on_an_added_partition_is_set_aside_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = planner_dies_of(world, monkeypatch, KILLER)
    world.broker.add_partitions(str(Topic.PIPELINES), 1)
    world.broker.groups[PLANNER.group("")].grown(world.broker.topics)
    for name in ("before", KILLER, "after"):
        world.publish(Topic.PIPELINES, name, PipelineApplied(pipeline=daily(name)), partition=world.partitions)
    is_set_aside_alone(world, Scenario(world), deaths)
    assert {row["name"] for row in world.database.rows("pipeline")} == {"before", "after"}
