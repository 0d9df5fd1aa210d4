"""Budgets, step by step: one pause for each, and a resume only with one that is not used up."""

from __future__ import annotations

from typing import Any

from retrofill_core.contract.backfills import BackfillRequested, BackfillResumeRequested
from retrofill_core.contract.base import Message
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.budget import Budget
from tests.simulation.schedule import DRAIN_SECONDS, FIRST, Scenario, run_until, run_until_drained
from tests.simulation.world import World
from tests.support.definitions import daily

DAYS = 9


def begin(world: World, **budget: Any) -> None:
    world.publish(Topic.PIPELINES, "p", PipelineApplied(pipeline=daily("p", max_active_runs=1)))
    request = {"pipeline": "p", "from": "2020-01-01", "to": f"2020-01-0{DAYS}", "budget": budget}
    world.publish(Topic.BACKFILL_REQUESTS, "b", BackfillRequested.model_validate(request))


def events(world: World, type: str) -> list[dict[str, Any]]:
    """The published events of the backfill, in order."""
    bodies = [world.body(entry) for _, _, entry in world.broker.read(str(Topic.BACKFILL_EVENTS))]
    return [body for body in bodies if body.get("type") == type]


def say(world: World, message: Message, reply: str, times: int) -> dict[str, Any]:
    """Publish a command and wait for its reply, the ``times``-th of its type."""
    world.publish(Topic.BACKFILL_REQUESTS, "b", message)
    run_until(world, lambda: len(events(world, reply)) == times)
    return events(world, reply)[-1]


def paused(world: World, times: int) -> dict[str, Any]:
    """Wait for the pause, and that nothing more happens."""
    run_until(world, lambda: len(events(world, "BackfillPaused")) == times)
    run_until(world, world.oracle.drained)
    assert len(events(world, "BackfillPaused")) == times
    assert world.database.rows("backfill")[0]["state"] == "paused"
    return events(world, "BackfillPaused")[-1]


def test_a_backfill_pauses_once_and_goes_on_with_a_larger_budget(world: World) -> None:
    world.failing = {("p", FIRST.replace(day=day)) for day in range(1, DAYS + 1)}
    begin(world, failed_runs=2)
    event = paused(world, 1)
    assert (event["cause"], "(failed_runs)" in event["message"]) == ("budget", True)
    refused = say(world, BackfillResumeRequested(), "BackfillCommandRejected", 1)
    assert "its budget is used up" in refused["message"]
    say(world, BackfillResumeRequested(budget=Budget(failed_runs=2)), "BackfillCommandRejected", 2)
    say(world, BackfillResumeRequested(budget=Budget(failed_runs=6)), "BackfillResumed", 1)
    assert paused(world, 2)["cause"] == "budget"
    run_until_drained(world, Scenario(world), world.scheduler.now + DRAIN_SECONDS)
    world.oracle.check_end()


def test_progress_is_announced_while_runs_end(world: World) -> None:
    begin(world)
    run_until_drained(world, Scenario(world), world.scheduler.now + DRAIN_SECONDS)
    world.oracle.check_end()
    assert [event["sequence"] for event in events(world, "BackfillProgress")] == list(
        range(1, len(events(world, "BackfillProgress")) + 1)
    )
