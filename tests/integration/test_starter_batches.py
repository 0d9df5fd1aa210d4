"""Attempts of several runs, their sizes and time-outs: planner and run-starter as real processes with Spark-free
drivers, on a real Kafka and Postgres.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.sampling import work_of
from tests.support.servers import Servers
from tests.support.stacks import attempts_of, run_of, shared_stack
from tests.support.terminal import Cli, cli, point_at
from tests.support.tiers import some

from retrofill.sdk.names import MAX_BATCH
from retrofill_core.contract.backfills import BackfillPauseRequested
from retrofill_core.contract.topics import Topic

__all__ = ["cli"]
HANGS = "2019-01-02"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where drivers log their work."""
    return tmp_path_factory.mktemp("drivers") / "work"


@pytest.fixture(scope="module")
def stack(servers: Servers, log: Path) -> Iterator[Installation]:
    """One in which one day does not end."""
    drivers = {"RETROFILL_DRIVER_SLOTS": "8", "INSTANT_SECONDS": "0.1", "INSTANT_LOG": str(log), "INSTANT_HANG": HANGS}
    with shared_stack(servers, **drivers) as made:
        yield made


def all_over(stack: Installation, id: str) -> list[dict[str, Any]]:
    """All attempts of a backfill once none is live: an attempt ends a moment after its last run."""
    live = "SELECT count(*) FROM attempt WHERE backfill_id = %s AND slot IS NOT NULL"
    until(lambda: stack.value(live, id) == 0, "its drivers are free")
    return attempts_of(stack, id)


@pytest.mark.parametrize("backwards", some([False, True], True))
def test_an_attempt_executes_several_runs_one_by_one_in_order(stack: Installation, log: Path, backwards: bool) -> None:
    name = f"ordered-{backwards}"
    stack.apply(daily(name, max_active_runs=2, batch_size=4))
    id = stack.request(name, "2020-01-01", "2020-01-31", run_backwards=backwards)
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    made = all_over(stack, id)
    assert {(each["state"], each["outcome"], each["slot"]) for each in made} == {("ended", "done", None)}
    sizes = [each["runs"] for each in made]
    assert (max(sizes), sum(sizes), sizes[-1]) == (4, 31, 1)
    runs = stack.query("SELECT *, interval_start AS day FROM run WHERE backfill_id = %s ORDER BY position", id)
    assert {(run["attempt"], run["lost_attempts"]) for run in runs} == {(1, 0)}
    assert [run["day"] for run in runs] == sorted((run["day"] for run in runs), reverse=backwards)
    assert [run["attempt_id"] for run in runs] == [each["id"] for each in made for _ in range(each["runs"])]
    # Of an attempt, each run begins after the one before has ended.
    for one, other in pairwise(runs):
        assert one["attempt_id"] != other["attempt_id"] or one["finished_at"] <= other["started_at"]
    worked = {line["run"]: line for line in work_of(log)}
    for one, other in pairwise(worked[run["id"]] | run for run in runs):
        assert one["attempt_id"] != other["attempt_id"] or one["ended"] <= other["began"]
    stack.wait_published()
    started = [event.body for event in stack.events(Topic.RUN_EVENTS) if event.body["type"] == "RunStarted"]
    for each in made:
        mine = [run["id"] for run in runs if run["attempt_id"] == each["id"]]
        assert [body["run_id"] for body in started if body["attempt_id"] == each["id"]] == mine


def test_a_run_that_hangs_fails_with_the_reason_and_the_rest_of_its_batch_goes_on(stack: Installation) -> None:
    stack.apply(daily("hangs", max_active_runs=1, batch_size=5, run_timeout_seconds=1.0))
    id = stack.request("hangs", "2019-01-01", "2019-01-05")
    assert stack.wait_state(id, "failed", "succeeded") == "failed"
    assert stack.runs_by_state(id) == {"failed": 1, "succeeded": 4}
    run = run_of(stack, id, HANGS)
    why = f"run {run['id']} timed out after 1s: raise run_timeout of pipeline 'hangs', or find out what takes so long"
    assert run["error"] == {"type": "RunTimedOut", "message": why}
    assert (run["attempt"], run["lost_attempts"]) == (1, 0)
    assert 1.0 <= (run["finished_at"] - run["started_at"]).total_seconds() < 20.0
    others = "SELECT DISTINCT lost_attempts, lost_at, range_limit FROM run WHERE backfill_id = %s AND state <> 'failed'"
    assert stack.query(others, id) == [{"lost_attempts": 0, "lost_at": None, "range_limit": None}]
    # An attempt ends after its last run, with which the backfill ends.
    until(lambda: all(each["outcome"] for each in attempts_of(stack, id)), "its attempts have ended")
    first, *more = attempts_of(stack, id)
    assert (first["runs"], first["outcome"], first["error"]["type"]) == (3, "released", "RunTimedOut")
    assert {each["outcome"] for each in more} == {"done"}
    stack.wait_published()
    events = [event.body for event in stack.events(Topic.RUN_EVENTS) if event.body.get("run_id") == run["id"]]
    started, failed = events
    assert (started["type"], failed["type"], failed["error"]["message"]) == ("RunStarted", "RunFailed", why)


def test_the_size_that_is_chosen_now_is_shown_with_the_reason(
    stack: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at(stack, monkeypatch)
    chosen: dict[str, Any] = {"batch_size": MAX_BATCH, "batch_target_seconds": 600, "batch_mode": "range"}
    stack.apply(daily("shown", max_active_runs=1, **chosen))
    (listed,) = [each for each in cli("pipelines", "list", "--json").document if each["name"] == "shown"]
    assert (listed["batch_size"], listed["batch_mode"]) == ("auto", "range")
    assert "auto, range" in cli("pipelines", "list").out
    assert "auto: attempts of about 0:10:00" in cli("pipelines", "show", "shown").out
    stack.request("shown", "2020-01-01", "2020-12-31", id="b")
    until(lambda: stack.runs_by_state("b").get("succeeded", 0) > 0, "it has begun")
    stack.publish(Topic.BACKFILL_REQUESTS, "b", BackfillPauseRequested())
    stack.wait_state("b", "paused")
    found = {4 * each["runs"] for each in all_over(stack, "b")}
    shown = cli("backfill", "show", "b", "--json").document
    assert shown["batch_size"] == "auto"
    assert shown["batch_now"]["runs"] in found
    assert "the largest size that succeeded recently" in shown["batch_now"]["why"]
    assert f"now {shown['batch_now']['runs']}: at most 4 × " in " ".join(cli("backfill", "show", "b").out.split())
