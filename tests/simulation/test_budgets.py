"""Budgets, step by step: one pause for each, and a resume only with one that is not used up."""

from __future__ import annotations

from typing import Any

from retrofill_core.contract.backfills import BackfillResumeRequested
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import Budget
from tests.simulation.schedule import FIRST, run_until
from tests.simulation.steps import apply, ask, drain
from tests.simulation.world import World

DAYS = 9


def begin(world: World, **budget: Any) -> None:
    apply(world, max_active_runs=1)
    ask(world, days=DAYS, budget=budget)


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
    drain(world)


def test_progress_is_announced_while_runs_end(world: World) -> None:
    begin(world)
    drain(world)
    sequence = [event["sequence"] for event in events(world, "BackfillProgress")]
    assert sequence == list(range(1, len(sequence) + 1))
