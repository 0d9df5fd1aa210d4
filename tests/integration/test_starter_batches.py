"""Attempts of several runs: the run-starter as a real process with Spark-free drivers, on a real Kafka
and Postgres.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.sampling import work_of
from tests.support.stacks import attempts_of, stack
from tests.support.tiers import some

from retrofill_core.contract.backfills import BackfillPauseRequested
from retrofill_core.contract.runs import AttemptEnded, ErrorInfo
from retrofill_core.contract.topics import Topic

__all__ = ["stack"]


def all_over(stack: Installation, id: str) -> list[dict[str, Any]]:
    """All attempts of a backfill once none is live: an attempt ends a moment after its last run."""
    live = "SELECT count(*) FROM attempt WHERE backfill_id = %s AND slot IS NOT NULL"
    until(lambda: stack.value(live, id) == 0, "its drivers are free")
    return attempts_of(stack, id)


@pytest.mark.parametrize("backwards", some([False, True], True))
def test_an_attempt_executes_several_runs_one_by_one_in_order(stack: Installation, backwards: bool) -> None:
    stack.apply(daily(max_active_runs=2, batch_size=4))
    log = stack.settings.home / "work"
    stack.start("instant-starter", RETROFILL_DRIVER_SLOTS="8", INSTANT_LOG=str(log))
    id = stack.request("p", "2020-01-01", "2020-01-31", run_backwards=backwards)
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    made = all_over(stack, id)
    assert {(each["state"], each["outcome"], each["slot"]) for each in made} == {("ended", "done", None)}
    sizes = [each["runs"] for each in made]
    assert (max(sizes), sum(sizes), sizes[-1]) == (4, 31, 1)
    runs = stack.query("SELECT *, interval_start AS day FROM run ORDER BY position")
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


@pytest.mark.long
def test_intervals_with_a_gap_between_them_are_not_executed_together(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=1, batch_size=10))
    stack.start("instant-starter")
    first = stack.request("p", "2020-01-03", "2020-01-04", id="first")
    assert stack.wait_state(first, "succeeded", "failed") == "succeeded"
    # The two days are skipped, as they exist. Without the gap, the first attempt would have 3 runs.
    id = stack.request("p", "2020-01-01", "2020-01-08")
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    spans = [(each["position"], each["runs"]) for each in attempts_of(stack, id)]
    assert sum(runs for _, runs in spans) == 6
    assert spans[0] == (0, 2)


@pytest.mark.parametrize("wish", some(["continue", "pause"], "continue"))
def test_a_failed_run_ends_its_attempt_and_the_others_are_queued_unchanged(stack: Installation, wish: str) -> None:
    stack.apply(daily(max_active_runs=1, batch_size=10))
    stack.start("instant-starter", INSTANT_FAIL="2020-01-03")
    id = stack.request("p", "2020-01-01", "2020-01-20", on_run_failure=wish)
    assert stack.wait_state(id, "failed", "paused", "succeeded") == ("failed" if wish == "continue" else "paused")
    first = all_over(stack, id)[0]
    assert (first["position"], first["runs"], first["outcome"]) == (0, 3, "done")
    runs = stack.query("SELECT state, attempt, lost_attempts FROM run ORDER BY position")
    begun = 20 if wish == "continue" else 3
    assert [run["attempt"] for run in runs] == [1] * begun + [0] * (20 - begun)
    assert [run["state"] for run in runs[:3]] == ["succeeded", "succeeded", "failed"]
    assert {run["state"] for run in runs[3:]} == {"succeeded" if wish == "continue" else "queued"}
    assert {run["lost_attempts"] for run in runs} == {0}
    stack.wait_published()
    # Nothing happened to the runs that had not begun, so there is nothing to tell.
    assert not [e for e in stack.events(Topic.RUN_EVENTS) if e.body["type"] == "RunAttemptLost"]


def report_lost(stack: Installation, id: str, run: int) -> None:
    """Report that the driver of a running run exited, as its host would."""
    attempt = stack.value("SELECT attempt_id FROM run WHERE id = %s AND state = 'running'", run)
    error = ErrorInfo(type="DriverLost", message="ended by signal 9")
    lost = AttemptEnded(backfill_id=id, attempt_id=attempt, state="lost", begun=run, error=error)
    stack.publish(Topic.RUN_REPORTS, id, lost)


def test_only_the_run_that_had_begun_counts_a_lost_driver(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=1, batch_size=3))
    stack.start("instant-starter", INSTANT_SECONDS="3600", RETROFILL_MAX_LOST_ATTEMPTS="2")
    id = stack.request("p", "2020-01-01", "2020-01-06")
    stack.outcome(id)
    first = stack.value("SELECT id FROM run WHERE position = 0")
    begun = "SELECT count(*) FROM run WHERE id = %s AND state = 'running' AND attempt = %s"
    for attempt in (1, 2, 3):
        until(lambda n=attempt: stack.value(begun, first, n) == 1, f"attempt {attempt} begins")  # type: ignore[misc]
        report_lost(stack, id, first)
    failed = stack.wait_event(Topic.RUN_EVENTS, lambda e: e.body["type"] == "RunFailed", "the first run fails")
    assert stack.query("SELECT id, attempt, lost_attempts FROM run WHERE position = 0") == [
        {"id": failed.body["run_id"], "attempt": 3, "lost_attempts": 2}
    ]
    events = [e.body for e in stack.events(Topic.RUN_EVENTS) if e.key == id]
    types = [event["type"] for event in events if event["run_id"] == first]
    assert types == ["RunStarted", "RunAttemptLost"] * 2 + ["RunStarted", "RunFailed"]
    # Until then, nothing was told of the runs that followed, which only the first attempt had.
    before = events[: next(n for n, event in enumerate(events) if event["type"] == "RunFailed")]
    assert {event["run_id"] for event in before} == {first}
    assert [each["runs"] for each in attempts_of(stack, id)][:3] == [3, 1, 1]
    assert stack.value("SELECT sum(lost_attempts) FROM run WHERE position > 0") == 0


@pytest.mark.long
def test_of_a_driver_that_fell_silent_the_next_run_counts_as_begun(stack: Installation) -> None:
    """It may have begun with its report unsent, and no two executions of it may have the same number."""
    stack.apply(daily(max_active_runs=1, batch_size=3))
    # This executor sends no heartbeat, so the lease ends.
    stack.start("instant-starter", INSTANT_SECONDS="3600", RETROFILL_LEASE_SECONDS="3")
    id = stack.request("p", "2020-01-01", "2020-01-06")
    told: list[dict[str, Any]] = []

    def two_lost() -> bool:
        told[:] = [e.body for e in stack.events(Topic.RUN_EVENTS) if e.key == id]
        return [event["type"] for event in told].count("RunAttemptLost") >= 2

    until(two_lost, "its runs are lost")
    runs = {row["id"]: row["position"] for row in stack.query("SELECT id, position FROM run")}
    # The third run of the batch cannot have begun.
    assert sorted((event["type"], runs[event["run_id"]], event["attempt"]) for event in told[:4]) == [
        ("RunAttemptLost", 0, 1),
        ("RunAttemptLost", 1, 1),
        ("RunStarted", 0, 1),
        ("RunStarted", 1, 1),
    ]
    lost = stack.query("SELECT position FROM run WHERE lost_at IS NOT NULL ORDER BY position")
    assert [run["position"] for run in lost] == [0, 1]


@pytest.mark.long
def test_a_pause_lets_the_run_that_is_executed_finish_and_queues_those_that_follow(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=1, batch_size=5))
    stack.start("instant-starter", INSTANT_SECONDS="3")
    id = stack.request("p", "2020-01-01", "2020-01-20")
    until(lambda: stack.runs_by_state(id).get("running") == 1, "the first one runs")
    stack.publish(Topic.BACKFILL_REQUESTS, id, BackfillPauseRequested())
    stack.wait_state(id, "paused")
    until(lambda: set(stack.runs_by_state(id)) == {"succeeded", "queued"}, "nothing runs")
    until(lambda: attempts_of(stack, id)[0]["outcome"] == "done", "the driver is free")
    by_state = stack.runs_by_state(id)
    # The pause may come between two runs.
    assert by_state["succeeded"] in (1, 2)
    assert stack.value("SELECT max(attempt) FROM run WHERE state = 'queued'") == 0
