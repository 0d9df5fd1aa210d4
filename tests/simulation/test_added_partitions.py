"""Topics gain partitions while services run and crash: every request is still answered once."""

from __future__ import annotations

from typing import Any

import pytest

from retrofill_core.bus.relay.relay import Relay
from retrofill_core.contract.topics import PLANNER, Topic
from tests.simulation.schedule import Scenario, run_schedule
from tests.simulation.shims import exchanged
from tests.simulation.steps import begin, drain
from tests.simulation.world import World

SCHEDULES = 16


@pytest.mark.long
def test_added_partitions_break_no_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Scenario.prepare
    on_added = []

    def growing(self: Scenario) -> None:
        prepare(self)
        world = self._world

        def grow() -> None:
            for topic in (Topic.BACKFILL_REQUESTS, Topic.PIPELINES):
                world.broker.add_partitions(str(topic), world.random.randint(0, 3))
            world.broker.groups[PLANNER.group("")].grown(world.broker.topics)
            self.apply()

        def appended(topic: str, partition: int, _: object) -> None:
            on_added.extend([topic] * (partition >= world.partitions))

        world.broker.on_append.append(appended)
        world.scheduler.at(world.scheduler.now + world.random.random() * 0.5, grow)

    monkeypatch.setattr(Scenario, "prepare", growing)
    with exchanged():
        for seed in range(SCHEDULES):
            run_schedule(seed)
    assert {str(Topic.BACKFILL_REQUESTS), str(Topic.PIPELINES)} == set(on_added)


def test_only_the_owner_of_the_first_partition_of_a_cursor_topic_is_the_relay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start(PLANNER)
    cursor = PLANNER.cursor_topic("")
    group = world.broker.groups[PLANNER.relay_id("")]
    relays: list[tuple[str, str]] = []
    take_over = Relay._take_over

    def taken(self: Relay) -> Any:
        if self._topic == cursor:
            relays.append((self._instance, group.owner((cursor, 0)).name))
        return take_over(self)

    monkeypatch.setattr(Relay, "_take_over", taken)
    world.broker.add_partitions(cursor, 8)
    group.grown(world.broker.topics)
    for second in range(5):
        world.scheduler.at(world.scheduler.now + second, group.rebalance)
    drain(world, begin(world))
    owners = {group.owner((cursor, partition)).name for partition in range(9)}
    assert owners == {instance.name for instance in world.alive(PLANNER)}
    assert relays and all(relay == owner for relay, owner in relays)
