"""The run-starter as real processes with Spark-free drivers, on a real Kafka and Postgres."""

from __future__ import annotations

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.stacks import stack
from tests.support.terminal import Cli, cli, point_at
from tests.support.tiers import some

from retrofill_core.contract.backfills import BackfillResumeRequested
from retrofill_core.contract.runs import AttemptEnded, AttemptHeartbeat, RunReported
from retrofill_core.contract.topics import Topic

__all__ = ["cli", "stack"]


def most_live(events: list[dict[str, object]]) -> int:
    """The largest number of runs live at once, according to one key's events in order."""
    live, most = 0, 0
    for event in events:
        if event["type"] == "RunStarted":
            live += 1
            most = max(most, live)
        elif event["type"] in ("RunSucceeded", "RunFailed", "RunCancelled", "RunAttemptLost"):
            live -= 1
    return most


def test_a_backfill_runs_within_its_limit_and_in_order(stack: Installation) -> None:
    stack.apply(daily(tasks=("a", "b"), max_active_runs=3))
    stack.start("instant-starter", RETROFILL_DRIVER_SLOTS="8")
    id = stack.request("p", "2020-01-01", "2020-02-09")
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    stack.wait_published()
    events = [e.body for e in stack.events(Topic.RUN_EVENTS) if e.key == id]
    assert most_live(events) <= 3
    started = stack.query("SELECT position, started_at FROM run WHERE backfill_id = %s ORDER BY position", id)
    assert len(started) == 40
    # Claims are in order, but runs that were claimed together may start in any order.
    for earlier, later in zip(started, started[3:], strict=False):
        assert earlier["started_at"] <= later["started_at"]
    tasks = stack.query("SELECT state, count(*) AS n FROM task_run GROUP BY state")
    assert tasks == [{"state": "succeeded", "n": 80}]
    ended = stack.wait_event(Topic.BACKFILL_EVENTS, lambda e: e.body["type"] == "BackfillSucceeded", "the end")
    assert ended.body["runs"] == {"succeeded": 40}


FAILED = [("continue", "failed"), ("pause", "paused"), ("cancel", "failed")]


@pytest.mark.long
@pytest.mark.parametrize(("wish", "state"), some(FAILED, FAILED[1]))
def test_what_a_failed_run_does_to_its_backfill(stack: Installation, wish: str, state: str) -> None:
    stack.apply(daily(max_active_runs=1))
    stack.start("instant-starter", INSTANT_FAIL="2020-01-03")
    id = stack.request("p", "2020-01-01", "2020-01-10", on_run_failure=wish)
    assert stack.wait_state(id, "failed", "paused", "succeeded") == state
    runs = stack.runs_by_state(id)
    assert runs["failed"] == 1
    assert runs["succeeded"] == (9 if wish == "continue" else 2)
    error = stack.value("SELECT error ->> 'message' FROM run WHERE state = 'failed'")
    assert error == "this day fails"
    if wish == "pause":
        stack.publish(Topic.BACKFILL_REQUESTS, id, BackfillResumeRequested())
        assert stack.wait_state(id, "failed", "succeeded") == "failed"
        assert stack.runs_by_state(id) == {"failed": 1, "succeeded": 9}


def test_a_killed_starter_loses_no_run(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=4))
    first = stack.start("instant-starter", INSTANT_SECONDS="0.2", RETROFILL_LEASE_SECONDS="3")
    id = stack.request("p", "2020-01-01", "2020-01-20")
    until(lambda: stack.runs_by_state(id).get("succeeded", 0) >= 4, "some succeeded")
    stack.start("instant-starter", INSTANT_SECONDS="0.2", RETROFILL_LEASE_SECONDS="3")
    first.kill()
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    assert stack.runs_by_state(id) == {"succeeded": 20}


def test_a_run_whose_driver_is_lost_again_and_again_fails_and_tells_how(
    stack: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an older attempt reports meanwhile."""
    stack.apply(daily(max_active_runs=1))
    # This executor sends no heartbeat after the first, so the lease ends and a new attempt begins.
    stack.start("instant-starter", INSTANT_SECONDS="3600", RETROFILL_LEASE_SECONDS="2", RETROFILL_MAX_LOST_ATTEMPTS="2")
    id = stack.request("p", "2020-01-01", "2020-01-01")
    until(lambda: stack.value("SELECT coalesce(max(attempt), 0) FROM run") >= 2, "a second attempt")
    run, first = stack.value("SELECT id FROM run"), stack.value("SELECT min(id) FROM attempt")
    for report in (
        AttemptHeartbeat(backfill_id=id, attempt_id=first),
        RunReported(backfill_id=id, attempt_id=first, run_id=run, attempt=1, state="succeeded"),
        AttemptEnded(backfill_id=id, attempt_id=first, state="done"),
    ):
        stack.publish(Topic.RUN_REPORTS, id, report)
    assert stack.wait_state(id, "failed", "succeeded") == "failed"
    silent = "its lease ended: no heartbeat arrived in time"
    told = f"the driver was lost 2 times when the run was retried alone; its losses: attempts 1 to 3: {silent}"
    fields = {"type": "DriverLost", "message": told}
    kept = {"last": [{"attempt": attempt, "reason": silent, "counted": attempt > 1} for attempt in (1, 2, 3)]}
    assert stack.query("SELECT error, lost_attempts, losses FROM run") == [
        {"error": fields, "lost_attempts": 2, "losses": kept}
    ]
    stack.wait_published()
    events = [e.body for e in stack.events(Topic.RUN_EVENTS)]
    assert [body["counted"] for body in events if body["type"] == "RunAttemptLost"] == [False, True]
    by_type = {body["type"]: body["error"] for body in events if "error" in body}
    assert by_type["RunAttemptLost"]["message"] == silent
    assert by_type["RunFailed"]["message"] == fields["message"]
    point_at(stack, monkeypatch)
    out = cli("backfill", "show", id).out
    notes = [" (not counted)", "", ""]
    assert "".join(f"  time {n}: the driver was lost: {silent}{note}\n" for n, note in enumerate(notes, 1)) in out
    ends = [line for line in out.splitlines() if line.startswith("attempt ")]
    assert [(" lost at " in line, line.endswith(f": {silent}")) for line in ends] == [(True, True)] * 3


@pytest.mark.long
def test_a_run_whose_settings_are_allowed_no_more_fails_before_it_has_a_driver(installation: Installation) -> None:
    """The settings were allowed when the pipeline was applied. The run-starter must check again
    because it is the one that would load the code.
    """
    installation.start("backfill-planner", RETROFILL_SPARK_CONF_ALLOW='["*"]')
    installation.apply(daily(spark_conf={"spark.jars": "https://evil.example/x.jar"}))
    installation.start("run-starter", RETROFILL_DRIVER_SLOTS="1")
    id = installation.request("p", "2020-01-01", "2020-01-01")
    assert installation.wait_state(id, "succeeded", "failed") == "failed"
    installation.wait_published()
    failed = [e.body for e in installation.events(Topic.RUN_EVENTS) if e.key == id and e.body["type"] == "RunFailed"]
    (error,) = [body["error"] for body in failed]
    assert error["type"] == "NotAllowed"
    assert "'spark.jars'" in error["message"] and "RETROFILL_SPARK_CONF_ALLOW" in error["message"]
    assert installation.query("SELECT attempt, state FROM run") == [{"attempt": 1, "state": "failed"}]
