"""The run-starter as real processes with Spark-free drivers, on a real Kafka and Postgres."""

from __future__ import annotations

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.stacks import stack
from tests.support.terminal import Cli, cli, point_at

from retrofill_core.contract.runs import AttemptEnded, AttemptHeartbeat, RunReported
from retrofill_core.contract.topics import Topic

__all__ = ["cli", "stack"]


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
    notes = {"1st": " (not counted)", "2nd": "", "3rd": ""}
    assert "".join(f"  the {n} time, the driver was lost: {silent}{note}\n" for n, note in notes.items()) in out
    ends = [line for line in out.splitlines() if line.startswith("attempt ")]
    assert [(" lost at " in line, line.endswith(f": {silent}")) for line in ends] == [(True, True)] * 3
