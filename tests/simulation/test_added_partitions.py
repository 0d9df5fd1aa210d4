"""Topics gain partitions while services run and crash: every request is still answered once."""

from __future__ import annotations

import pytest

from retrofill.contract.topics import PLANNER, Topic
from tests.simulation.schedule import Scenario, run_schedule
from tests.simulation.shims import exchanged

SCHEDULES = 16


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
