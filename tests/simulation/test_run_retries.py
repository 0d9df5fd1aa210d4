"""Interleavings of retries with what else may happen to a backfill, replayed step by step."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from retrofill_core.contract.backfills import RunRetryRequested
from retrofill_core.contract.topics import PLANNER, RUN_STARTER, Topic
from tests.simulation.schedule import Scenario, run_until
from tests.simulation.steps import apply, ask, drain, lose
from tests.simulation.world import World

FAILS = datetime(2020, 1, 1, tzinfo=UTC)


def begin(world: World, days: int = 2, **more: Any) -> Scenario:
    """Request a backfill whose first run fails, one run at a time."""
    world.failing = {("p", FAILS)}
    apply(world, max_active_runs=1)
    ask(world, days=days, **more)
    return Scenario(world)


def retry(world: World, times: int = 1) -> str:
    """Retry all failed runs, with their code fixed."""
    world.fixed = set(world.failing)
    return world.publish(Topic.BACKFILL_REQUESTS, "b", RunRetryRequested(all_failed=True), times=times)


def ended(world: World, scenario: Scenario) -> str:
    """Run until all is done. Returns the state of the backfill."""
    drain(world, scenario)
    return str(world.database.rows("backfill")[0]["state"])


def states(world: World) -> list[tuple[int, str, bool]]:
    """Each run's position, state, and whether it counts."""
    rows = world.database.rows("run")
    return sorted((row["position"], row["state"], row["superseded_by"] is None) for row in rows)


def has_failed(world: World) -> bool:
    return any(row["state"] == "failed" for row in world.database.rows("run"))


def answers(world: World, ce_id: str) -> list[str]:
    """The types of the replies to a command."""
    bodies = [world.body(entry) for _, _, entry in world.broker.read(str(Topic.BACKFILL_EVENTS))]
    return [body["type"] for body in bodies if body.get("in_reply_to") == ce_id]


def test_a_run_is_retried_while_another_is_live(world: World) -> None:
    scenario = begin(world)
    run_until(world, lambda: has_failed(world) and bool(world.at_work))
    ce_id = retry(world, times=2)
    assert ended(world, scenario) == "succeeded"
    assert states(world) == [(0, "failed", False), (0, "succeeded", True), (1, "succeeded", True)]
    assert answers(world, ce_id) == ["RunsRetried"] * 2


def test_a_retry_that_comes_with_the_last_end_wins_or_is_refused(world: World) -> None:
    """The planner reads the command and the end of the last run in one batch: the command is handled
    first, and the check of the end finds a queued run.
    """
    scenario = begin(world, days=1)
    run_until(world, lambda: bool(world.at_work))
    (planner,) = world.alive(PLANNER)
    planner.process.frozen = True
    run_until(world, lambda: has_failed(world))
    ce_id = retry(world)
    planner.process.frozen = False
    state = ended(world, scenario)
    if answers(world, ce_id) == ["RunsRetried"]:
        assert (state, states(world)) == ("succeeded", [(0, "failed", False), (0, "succeeded", True)])
    else:
        assert (state, states(world)) == ("failed", [(0, "failed", True)])


def test_an_ended_backfill_is_not_continued(world: World) -> None:
    scenario = begin(world, days=1)
    assert ended(world, scenario) == "failed"
    ce_id = retry(world)
    assert ended(world, scenario) == "failed"
    assert answers(world, ce_id) == ["BackfillCommandRejected"]
    assert states(world) == [(0, "failed", True)]


def test_a_retry_of_a_paused_backfill_starts_when_it_is_resumed(world: World) -> None:
    scenario = begin(world, on_run_failure="pause")
    run_until(world, lambda: has_failed(world) and world.database.rows("backfill")[0]["state"] == "paused")
    retry(world)
    run_until(world, lambda: (0, "queued", True) in states(world))
    assert world.database.rows("backfill")[0]["state"] == "paused"
    assert ended(world, scenario) == "succeeded"


def test_a_retry_whose_reply_is_lost_is_started_all_the_same(world: World) -> None:
    scenario = begin(world)
    run_until(world, lambda: has_failed(world) and bool(world.at_work))
    lose(world, "RunsRetried")
    retry(world)
    assert ended(world, scenario) == "succeeded"
    assert world.lost


def test_a_run_starter_that_dies_leaves_the_new_run_to_the_next_one(world: World) -> None:
    scenario = begin(world)
    run_until(world, lambda: has_failed(world) and bool(world.at_work))
    retry(world)
    run_until(world, lambda: (0, "queued", True) in states(world))
    world.crash(world.alive(RUN_STARTER)[0], machine=True)
    world.start(RUN_STARTER)
    assert ended(world, scenario) == "succeeded"
