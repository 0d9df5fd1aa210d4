"""Cancels of single runs: planner and run-starter as real processes with Spark-free drivers, on a real
Kafka and Postgres.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.support.definitions import alert, daily
from tests.support.events import Event
from tests.support.installation import Installation, until
from tests.support.tiers import some

from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillPauseRequested,
    BackfillResumeRequested,
    RunCancelRequested,
)
from retrofill_core.contract.topics import Topic

DAY = "2020-01-03"
NEVER = {"INSTANT_SECONDS": "3600"}
AT_ONCE = {"INSTANT_SECONDS": "0"}
LIVE = list(itertools.product(["2020-01-01", DAY], ["each", "range"]))


@pytest.fixture
def stack(installation: Installation) -> Installation:
    installation.start("backfill-planner")
    return installation


def cancel(stack: Installation, id: str, *days: str, runs: tuple[int, ...] = ()) -> Event:
    """Request the cancel of these runs. Returns the reply."""
    command = RunCancelRequested.model_validate({"intervals": days, "run_ids": runs})
    return stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, id, command))


def run_of(stack: Installation, id: str, day: str = DAY) -> dict[str, Any]:
    (row,) = stack.query("SELECT * FROM run WHERE backfill_id = %s AND interval_start = %s", id, f"{day}T00:00:00Z")
    return row


def events_of(stack: Installation, run: int) -> list[str]:
    """The types of a run's events, in order."""
    stack.wait_published()
    return [event.body["type"] for event in stack.events(Topic.RUN_EVENTS) if event.body.get("run_id") == run]


def attempts_of(stack: Installation, id: str) -> list[dict[str, Any]]:
    return stack.query("SELECT * FROM attempt WHERE backfill_id = %s ORDER BY id", id)


@pytest.mark.long
def test_a_queued_run_of_a_paused_backfill_is_cancelled_at_once_and_the_others_go_on(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=1, deadlines=[alert("late", "RUN_QUEUED_AT", 3600)]))
    id = stack.request("p", "2020-01-01", "2020-01-05")
    stack.outcome(id)
    stack.publish(Topic.BACKFILL_REQUESTS, id, BackfillPauseRequested())
    stack.wait_state(id, "paused")
    stack.start("instant-starter", AT_ONCE)
    stack.start("deadline-watcher")
    answer = cancel(stack, id, DAY)
    run = run_of(stack, id)["id"]
    assert answer.body["type"] == "RunCancelAccepted"
    assert (answer.body["run_ids"], answer.body["intervals"]) == ([run], ["2020-01-03T00:00:00Z"])
    until(lambda: run_of(stack, id)["state"] == "cancelled", "it is cancelled")
    assert stack.runs_by_state(id) == {"cancelled": 1, "queued": 4}
    assert events_of(stack, run) == ["RunCancelled"]
    until(lambda: stack.value("SELECT state FROM deadline WHERE run_id = %s", run) == "void", "its deadline is void")
    # It never started, so its interval has no state.
    assert not [event for event in stack.events(Topic.INTERVAL_STATES) if DAY in event.key]
    stack.publish(Topic.BACKFILL_REQUESTS, id, BackfillResumeRequested())
    assert stack.wait_state(id, "failed", "succeeded", "cancelled") == "failed"
    assert stack.runs_by_state(id) == {"cancelled": 1, "succeeded": 4}
    end = stack.wait_event(Topic.BACKFILL_EVENTS, lambda e: e.body["type"] == "BackfillFailed", "the end")
    assert end.body["message"] == "of 5 runs: 1 cancelled"


@pytest.mark.parametrize(("day", "mode"), some(LIVE, LIVE[0]))
def test_a_run_of_a_live_attempt_ends_it_and_the_others_are_queued_unsplit(
    stack: Installation, day: str, mode: str
) -> None:
    """Both the run that is executed and one that waits for its turn."""
    stack.apply(daily(max_active_runs=1, batch_size=5, batch_mode=mode))
    starter = stack.start("instant-starter", NEVER)
    id = stack.request("p", "2020-01-01", "2020-01-05")
    until(lambda: stack.runs_by_state(id).get("running") == 1, "the first one runs")
    first = attempts_of(stack, id)[0]
    assert first["runs"] == (3 if mode == "each" else 5)
    cancel(stack, id, day)
    until(lambda: run_of(stack, id, day)["state"] == "cancelled", "it is cancelled")
    until(lambda: len(attempts_of(stack, id)) == 2, "the others are tried again")
    starter.stop()
    stack.start("instant-starter", AT_ONCE)
    assert stack.wait_state(id, "failed", "succeeded", "cancelled") == "failed"
    assert stack.runs_by_state(id) == {"cancelled": 1, "succeeded": 4}
    first, second = attempts_of(stack, id)[:2]
    assert (first["outcome"], first["error"]["type"]) == ("released", "AttemptReleased")
    assert second["position"] == (1 if day == "2020-01-01" else 0)
    rows = stack.query("SELECT lost_attempts, range_limit FROM run")
    assert {tuple(row.values()) for row in rows} == {(0, None)}


def test_the_only_run_of_an_attempt_is_cancelled_with_it(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=2))
    stack.start("instant-starter", NEVER)
    id = stack.request("p", "2020-01-01", "2020-01-02")
    until(lambda: stack.runs_by_state(id) == {"running": 2}, "both run")
    run = run_of(stack, id, "2020-01-02")["id"]
    cancel(stack, id, runs=(run,))
    until(lambda: stack.runs_by_state(id) == {"running": 1, "cancelled": 1}, "one is cancelled")
    assert [each["outcome"] for each in attempts_of(stack, id)] == [None, "released"]
    assert events_of(stack, run) == ["RunStarted", "RunCancelled"]
    states = [e.body["state"] for e in stack.events(Topic.INTERVAL_STATES) if e.body["run_id"] == run]
    assert states == ["running", "cancelled"]
    # A cancel of the whole backfill is the user's last word.
    stack.publish(Topic.BACKFILL_REQUESTS, id, BackfillCancelRequested())
    assert stack.wait_state(id, "cancelled", "failed") == "cancelled"


def test_a_run_that_was_released_and_is_then_cancelled_leaves_its_interval_cancelled(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=1, batch_size=5, batch_mode="range"))
    stack.start("instant-starter", NEVER)
    id = stack.request("p", "2020-01-01", "2020-01-02")
    until(lambda: stack.runs_by_state(id).get("running") == 1, "it runs")
    stack.publish(Topic.BACKFILL_REQUESTS, id, BackfillPauseRequested())
    stack.wait_state(id, "paused")
    cancel(stack, id, "2020-01-02")
    until(lambda: stack.runs_by_state(id) == {"queued": 1, "cancelled": 1}, "one is cancelled, one waits")
    cancel(stack, id, "2020-01-01")
    assert stack.wait_state(id, "failed", "succeeded", "cancelled") == "failed"
    stack.wait_published()
    last = {e.key: e.body["state"] for e in stack.events(Topic.INTERVAL_STATES)}
    assert set(last.values()) == {"cancelled"}
    assert events_of(stack, run_of(stack, id, "2020-01-01")["id"]) == ["RunStarted", "RunAttemptLost", "RunCancelled"]


def test_a_command_is_carried_out_once_and_refused_with_the_reason(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=1, timezone="America/New_York"))
    id = stack.request("p", "2020-01-01", "2020-01-05")
    stack.outcome(id)
    command = RunCancelRequested.model_validate({"intervals": [DAY, "2020-01-04T00:00:00-05:00"]})
    ce_id = stack.publish(Topic.BACKFILL_REQUESTS, id, command, headers={"ce_id": "once"})
    first = stack.wait_answer(ce_id)
    stack.publish(Topic.BACKFILL_REQUESTS, id, command, headers={"ce_id": "once"})
    until(lambda: [e.body.get("in_reply_to") for e in stack.events(Topic.BACKFILL_EVENTS)].count("once") == 2, "twice")
    assert [e.body for e in stack.events(Topic.BACKFILL_EVENTS) if e.body.get("in_reply_to") == "once"] == [
        first.body
    ] * 2
    assert stack.query("SELECT DISTINCT ce_id FROM run_cancel") == [{"ce_id": "once"}]
    refused = {
        (DAY,): "is already being cancelled; no run was cancelled",
        ("2020-02-01", "2020-01-01"): "the backfill has no run of 2020-02-01: 'retrofill runs list' shows its runs",
        (): "it names no run: give intervals (logical dates) or run_ids",
    }
    for days, why in refused.items():
        answer = cancel(stack, id, *days)
        assert (answer.body["type"], answer.body["command"]) == ("BackfillCommandRejected", "RunCancelRequested")
        assert why in answer.body["message"]
    assert "there is no backfill with this id" in cancel(stack, "nobody", DAY).body["message"]
    stack.start("instant-starter", AT_ONCE)
    assert stack.wait_state(id, "failed", "succeeded", "cancelled") == "failed"
    assert stack.runs_by_state(id) == {"cancelled": 2, "succeeded": 3}
    assert cancel(stack, id, "2020-01-01").body["message"] == "the backfill is failed: there is nothing to cancel"


def test_a_run_that_ended_is_not_cancelled(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=1))
    stack.start("instant-starter", AT_ONCE, INSTANT_FAIL="2020-01-02")
    id = stack.request("p", "2020-01-01", "2020-01-03", on_run_failure="pause")
    stack.wait_state(id, "paused")
    answer = cancel(stack, id, "2020-01-01", "2020-01-02", DAY)
    assert "is succeeded: there is nothing to cancel (and 1 more)" in answer.body["message"]
    assert stack.runs_by_state(id) == {"succeeded": 1, "failed": 1, "queued": 1}


@pytest.mark.long
def test_a_cancel_outlives_the_services_that_died_over_it(installation: Installation) -> None:
    dying = installation.start("backfill-planner", RETROFILL_CRASH_POINT="run-cancel:written")
    installation.apply(daily(max_active_runs=1))
    id = installation.request("p", "2020-01-01", "2020-01-05")
    installation.outcome(id)
    command = RunCancelRequested.model_validate({"intervals": [DAY]})
    ce_id = installation.publish(Topic.BACKFILL_REQUESTS, id, command)
    until(lambda: dying.process.poll() is not None, "the planner dies", dying.said)
    assert installation.value("SELECT count(*) FROM run_cancel") == 0
    installation.start("backfill-planner")
    assert installation.wait_answer(ce_id).body["type"] == "RunCancelAccepted"
    starter = installation.start("instant-starter", NEVER, wait=False, RETROFILL_CRASH_POINT="run-cancel:applied")
    until(lambda: starter.process.poll() is not None, "the run-starter dies", starter.said)
    assert installation.runs_by_state(id) == {"queued": 5}
    installation.start("instant-starter", AT_ONCE)
    assert installation.wait_state(id, "failed", "succeeded", "cancelled") == "failed"
    assert events_of(installation, run_of(installation, id)["id"]) == ["RunCancelled"]
