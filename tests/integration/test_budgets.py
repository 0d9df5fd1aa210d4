"""Budgets, costs and announced progress: planner and run-starter as real processes with Spark-free
drivers, on a real Kafka and Postgres.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.servers import Servers
from tests.support.stacks import shared_stack

from retrofill_core.contract.backfills import BackfillCancelRequested
from retrofill_core.contract.topics import Topic

DAYS = [f"2020-01-{day:02}" for day in range(1, 11)]


@pytest.fixture(scope="module")
def costly(servers: Servers) -> Iterator[Installation]:
    """A stack whose runs take half a core-hour each, and three seconds."""
    with shared_stack(servers, INSTANT_CORE_SECONDS="1800", INSTANT_SECONDS="3") as made:
        yield made


def request(stack: Installation, pipeline: str, **budget: Any) -> str:
    stack.apply(daily(pipeline, max_active_runs=1))
    return stack.request(pipeline, DAYS[0], DAYS[-1], budget=budget)


def events(stack: Installation, id: str, type: str) -> list[dict[str, Any]]:
    stack.wait_published()
    bodies = [event.body for event in stack.events(Topic.BACKFILL_EVENTS, progress=True) if event.key == id]
    return [body for body in bodies if body["type"] == type]


def quiet(stack: Installation, id: str) -> None:
    """Wait until the runs in progress have ended."""
    until(lambda: not stack.query("SELECT id FROM attempt WHERE slot IS NOT NULL AND backfill_id = %s", id), "quiet")


def test_core_hours_are_summed_announced_and_limited(costly: Installation) -> None:
    id = request(costly, "hours", core_hours=1.0)
    costly.wait_state(id, "paused")
    quiet(costly, id)
    (paused,) = events(costly, id, "BackfillPaused")
    assert paused["cause"] == "budget"
    assert paused["message"].endswith("of at most 1 (core_hours)")
    assert costly.value("SELECT sum(core_seconds) FROM attempt WHERE backfill_id = %s", id) >= 3600
    progress = events(costly, id, "BackfillProgress")
    assert [each["sequence"] for each in progress] == list(range(1, len(progress) + 1))
    assert progress[-1]["cost"]["core_seconds"] >= 3600
    times = [datetime.fromisoformat(each["at"]) for each in progress]
    assert all(later - earlier >= timedelta(seconds=4.9) for earlier, later in pairwise(times))
    assert all(sum(each["runs_by_state"].values()) == each["runs"] == len(DAYS) for each in progress)
    assert len({tuple(each["runs_by_state"].items()) for each in progress}) == len(progress)
    with_end = [each for each in progress if "estimated_end" in each]
    assert all(each["earliest_end"] <= each["estimated_end"] <= each["latest_end"] for each in with_end)
    assert with_end


def test_a_moment_pauses_a_backfill(costly: Installation) -> None:
    now = costly.value("SELECT clock_timestamp()")
    id = request(costly, "moment", until=(now + timedelta(seconds=4)).isoformat())
    costly.wait_state(id, "paused", seconds=90)
    (paused,) = events(costly, id, "BackfillPaused")
    assert paused["message"].endswith("(until)")
    late = costly.request("moment", "2021-01-01", "2021-01-02", budget={"until": now.isoformat()})
    rejected = costly.outcome(late).body
    assert (rejected["type"], rejected["reason"]) == ("BackfillRejected", "budget_past")


def test_a_backfill_without_a_real_end_can_be_shown_and_cancelled(costly: Installation) -> None:
    # In UTC, that is in a year that Python does not know.
    id = request(costly, "endless", until="9999-12-31T23:59:59-05:00")
    assert costly.outcome(id).body["type"] == "BackfillPlanned"
    until(lambda: costly.runs_by_state(id).get("running") == 1, "it runs")
    assert costly.wait_answer(costly.publish(Topic.BACKFILL_REQUESTS, id, BackfillCancelRequested())).body["type"]
    assert costly.wait_state(id, "cancelled")
