"""Runs that exceed ``run_timeout``: planner and run-starter as real processes with Spark-free drivers, on a
real Kafka and Postgres.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation
from tests.support.servers import Servers
from tests.support.stacks import attempts_of, run_of, shared_stack, stack

from retrofill_core.contract.topics import Topic

__all__ = ["stack"]
DAY = "2020-01-02"
HANGS = {"INSTANT_HANG": DAY}


@pytest.fixture(scope="module")
def hanging(servers: Servers) -> Iterator[Installation]:
    """A stack in which the second of January does not end."""
    with shared_stack(servers, **HANGS) as made:
        yield made


def events_of(stack: Installation, run: int) -> list[dict[str, Any]]:
    """A run's events, in order."""
    stack.wait_published()
    return [event.body for event in stack.events(Topic.RUN_EVENTS) if event.body.get("run_id") == run]


def kept(stack: Installation, id: str) -> set[tuple[Any, ...]]:
    """What is held against the runs that did not fail."""
    query = "SELECT lost_attempts, lost_at, range_limit FROM run WHERE backfill_id = %s AND state <> 'failed'"
    rows = stack.query(query, id)
    return {tuple(row.values()) for row in rows}


def test_a_run_that_hangs_fails_with_the_reason_and_the_rest_of_its_batch_goes_on(hanging: Installation) -> None:
    hanging.apply(daily("batch", max_active_runs=1, batch_size=5, run_timeout_seconds=1.0))
    id = hanging.request("batch", "2020-01-01", "2020-01-05")
    assert hanging.wait_state(id, "failed", "succeeded") == "failed"
    assert hanging.runs_by_state(id) == {"failed": 1, "succeeded": 4}
    run = run_of(hanging, id, DAY)
    why = f"run {run['id']} timed out after 1s: raise run_timeout of pipeline 'batch', or find out what takes so long"
    assert run["error"] == {"type": "RunTimedOut", "message": why}
    assert (run["attempt"], run["lost_attempts"]) == (1, 0)
    assert 1.0 <= (run["finished_at"] - run["started_at"]).total_seconds() < 20.0
    assert kept(hanging, id) == {(0, None, None)}
    first, *others = attempts_of(hanging, id)
    assert (first["runs"], first["outcome"], first["error"]["type"]) == (3, "released", "RunTimedOut")
    assert {each["outcome"] for each in others} == {"done"}
    started, failed = events_of(hanging, run["id"])
    assert (started["type"], failed["type"], failed["error"]["message"]) == ("RunStarted", "RunFailed", why)


def test_a_range_that_hangs_is_split_until_one_run_fails_alone(hanging: Installation) -> None:
    hanging.apply(daily("range", max_active_runs=1, batch_size=4, batch_mode="range", run_timeout_seconds=1.0))
    id = hanging.request("range", "2020-01-01", "2020-01-04")
    assert hanging.wait_state(id, "failed", "succeeded") == "failed"
    assert hanging.runs_by_state(id) == {"failed": 1, "succeeded": 3}
    run = run_of(hanging, id, DAY)
    assert run["error"]["message"].startswith(f"run {run['id']} timed out after 1s: ")
    assert {row[:2] for row in kept(hanging, id)} == {(0, None)}
    whole = attempts_of(hanging, id)[0]
    assert (whole["mode"], whole["runs"], whole["outcome"]) == ("range", 4, "failed")
    assert "timed out after 4s (1s for each of 4 runs): " in whole["error"]["message"]
    types = [body["type"] for body in events_of(hanging, run["id"])]
    assert types[:2] == ["RunStarted", "RunSplit"] and types[-1] == "RunFailed"


def test_on_run_failure_applies(hanging: Installation) -> None:
    hanging.apply(daily("pauses", max_active_runs=1, run_timeout_seconds=1.0))
    id = hanging.request("pauses", "2020-01-01", "2020-01-03", on_run_failure="pause")
    assert hanging.wait_state(id, "paused", "failed", "succeeded") == "paused"
    assert hanging.runs_by_state(id) == {"succeeded": 1, "failed": 1, "queued": 1}
