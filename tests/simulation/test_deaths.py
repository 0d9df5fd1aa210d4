"""A message that kills every process that handles it is set aside, and its partition continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from backfill_planner.handler import PlannerHandler
from retrofill.bus.handler import Received
from retrofill.bus.worker.deaths import DEATHS
from retrofill.contract.backfills import BackfillRequested
from retrofill.contract.topics import PLANNER, Topic
from tests.simulation.schedule import DRAIN_SECONDS, Scenario, run_until_drained
from tests.simulation.world import World

KILLER = "killer"


def request(world: World, id: str, year: int) -> None:
    body = {"pipeline": "p0", "from": f"{year}-01-01", "to": f"{year}-01-01"}
    message = BackfillRequested.model_validate(body)
    ce_id = world.publish(Topic.BACKFILL_REQUESTS, id, message, partition=0)
    if id == KILLER:
        # Expect a dead letter with its key and bytes, and no reply.
        world.poison[ce_id] = (id.encode(), message.encode())
        del world.published[ce_id]


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


def test_a_message_that_ends_its_process_is_set_aside_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = planner_dies_of(world, monkeypatch, KILLER)
    scenario = Scenario(world)
    scenario.apply("p0")
    for n, id in enumerate(("before-1", "before-2", KILLER, "after-1", "after-2")):
        request(world, id, 2001 + n)
    scheduler = world.scheduler
    end = scheduler.now + DRAIN_SECONDS
    scheduler.run(lambda: scheduler.now >= end or bool(world.broker.read(str(Topic.DEAD_LETTERS))))
    run_until_drained(world, scenario, end)
    world.oracle.check_end()
    (letter,) = (entry for _, _, entry in world.broker.read(str(Topic.DEAD_LETTERS)))
    assert letter.key == KILLER.encode()
    assert f"died {DEATHS} times" in dict(letter.headers)["retrofill_reason"].decode()  # type: ignore[union-attr]
    assert {row["id"] for row in world.database.rows("backfill")} == {"before-1", "before-2", "after-1", "after-2"}
    # At most two crashes in a batch with other messages: the shard made progress in between.
    assert (deaths[1] >= DEATHS, sum(deaths.values()) <= DEATHS + 2) == (True, True)
