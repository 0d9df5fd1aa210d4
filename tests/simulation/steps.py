"""The steps that tests of single interleavings share: ask for a backfill, lose a message, run to the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import PLANNER, RUN_STARTER, Topic
from tests.simulation.schedule import DRAIN_SECONDS, Scenario, run_until_drained
from tests.simulation.servers import LOST, body_of
from tests.simulation.shims import exchanged
from tests.simulation.world import World
from tests.support.definitions import daily


@contextmanager
def two_starters(seed: int) -> Iterator[World]:
    """A planner and two run-starters, without other faults."""
    with exchanged():
        world = World(seed)
        world.services = (PLANNER, RUN_STARTER)
        for service in (PLANNER, RUN_STARTER, RUN_STARTER):
            world.start(service)
        yield world
        world.close()


def apply(world: World, name: str = "p", **more: Any) -> None:
    world.publish(Topic.PIPELINES, name, PipelineApplied(pipeline=daily(name, **more)))


def ask(world: World, id: str = "b", pipeline: str = "p", *, days: int = 3, **more: Any) -> None:
    """Request a backfill of the first days of 2020."""
    asked = {"pipeline": pipeline, "from": "2020-01-01", "to": f"2020-01-{days:02}", **more}
    world.publish(Topic.BACKFILL_REQUESTS, id, BackfillRequested.model_validate(asked))


def begin(world: World, *, at_once: int = 1, days: int = 3, **more: Any) -> Scenario:
    """Apply a pipeline and request its backfill, by default of three runs, one at a time."""
    apply(world, **more)
    ask(world, days=days, max_active_runs=at_once)
    return Scenario(world)


def drain(world: World, scenario: Scenario | None = None) -> None:
    """Run until all is done."""
    run_until_drained(world, scenario or Scenario(world), world.scheduler.now + DRAIN_SECONDS)
    world.oracle.check_end()


def lose(world: World, kind: str) -> None:
    """From now on, events and reports of this type become dead letters."""

    def spoil(topic: str, headers: list[tuple[str, bytes | None]], value: bytes | None) -> bytes | None:
        if body_of(value).get("type") != kind or topic not in (
            Topic.BACKFILL_EVENTS,
            Topic.RUN_EVENTS,
            Topic.RUN_REPORTS,
        ):
            return value
        world.lost[(dict(headers)["ce_id"] or b"").decode()] = value or b""
        return LOST

    world.broker.spoil = spoil
