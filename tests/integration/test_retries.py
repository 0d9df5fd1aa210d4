"""Retries and changes of active backfills: planner, run-starter and watcher as real processes with
Spark-free drivers, on a real Kafka and Postgres.
"""

from __future__ import annotations

from typing import Any

from tests.support.definitions import alert, daily
from tests.support.events import Event
from tests.support.installation import Installation, until
from tests.support.stacks import stack

from retrofill_core.contract.backfills import (
    BackfillResumeRequested,
    RunRetryRequested,
)
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import Topic

__all__ = ["stack"]
DAY = "2020-01-02"
AT_ONCE = {"INSTANT_SECONDS": "0"}


def command(stack: Installation, id: str, message: Message) -> Event:
    """Publish a command. Returns the reply."""
    return stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, id, message))


def retry(stack: Installation, id: str, *days: str) -> Event:
    """Retry the runs of these days, or all failed ones."""
    return command(stack, id, RunRetryRequested.model_validate({"all_failed": not days, "intervals": days}))


def runs_of(stack: Installation, id: str, day: str = DAY) -> list[dict[str, Any]]:
    """A day's runs, oldest first."""
    query = "SELECT * FROM run WHERE backfill_id = %s AND interval_start = %s ORDER BY id"
    return stack.query(query, id, f"{day}T00:00:00Z")


def paused_over_a_failure(stack: Installation, **more: Any) -> str:
    """A backfill of five days that failed on the second one, with its code fixed since."""
    stack.apply(daily(max_active_runs=1, **more))
    starter = stack.start("instant-starter", AT_ONCE, INSTANT_FAIL=DAY)
    id = stack.request("p", "2020-01-01", "2020-01-05", on_run_failure="pause")
    stack.wait_state(id, "paused")
    until(lambda: stack.runs_by_state(id) == {"succeeded": 1, "failed": 1, "queued": 3}, "the others wait")
    starter.stop()
    stack.start("instant-starter", AT_ONCE)
    return id


def test_a_failed_run_is_replaced_once_while_paused_and_the_backfill_succeeds(stack: Installation) -> None:
    alerts = [alert("late", "RUN_QUEUED_AT", 3600, fire_on_failure=True), alert("first", "RUN_STARTED_AT", 3600)]
    id = paused_over_a_failure(stack, deadlines=alerts)
    stack.start("deadline-watcher")
    message = RunRetryRequested.model_validate({"intervals": [DAY]})
    for _ in range(2):
        stack.publish(Topic.BACKFILL_REQUESTS, id, message, headers={"ce_id": "once"})

    def answers() -> list[dict[str, Any]]:
        bodies = [event.body for event in stack.events(Topic.BACKFILL_EVENTS)]
        return [body for body in bodies if body.get("in_reply_to") == "once"]

    until(lambda: len(answers()) == 2, "it is answered twice")
    answer, again = answers()
    old, new = runs_of(stack, id)
    assert answer == again
    assert (answer["type"], answer["runs"]) == ("RunsRetried", 1)
    assert (answer["run_ids"], answer["intervals"]) == ([new["id"]], [f"{DAY}T00:00:00Z"])
    assert (old["state"], old["superseded_by"], new["position"]) == ("failed", new["id"], old["position"])
    # It starts when the backfill is resumed; what is accepted by the resume is no failure any more.
    assert (new["state"], new["attempt"], stack.value("SELECT state FROM backfill")) == ("queued", 0, "paused")
    voided = "SELECT state, reason FROM deadline WHERE run_id = %s AND alert = 'late'"
    until(lambda: stack.query(voided, old["id"])[0]["state"] == "void", "the deadline of the old run is void")
    assert "retried" in stack.query(voided, old["id"])[0]["reason"]
    assert stack.query(voided, new["id"]) == [{"state": "armed", "reason": None}]
    refused = {
        (DAY,): "is queued: only failed runs are retried; no run was retried",
        ("2020-01-01", "2020-02-01"): "the backfill has no run of 2020-02-01",
        (): "none of its runs is failed: there is nothing to retry",
    }
    for days, why in refused.items():
        body = retry(stack, id, *days).body
        assert (body["type"], body["command"]) == ("BackfillCommandRejected", "RunRetryRequested")
        assert why in body["message"]
    assert "it must name runs" in command(stack, id, RunRetryRequested()).body["message"]
    assert "there is no backfill with this id" in retry(stack, "nobody").body["message"]
    stack.publish(Topic.BACKFILL_REQUESTS, id, BackfillResumeRequested())
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    assert "the backfill is succeeded: 'retrofill backfill retry" in retry(stack, id).body["message"]
    end = stack.wait_event(Topic.BACKFILL_EVENTS, lambda e: e.body["type"] == "BackfillSucceeded", "the end")
    assert end.body["runs"] == {"succeeded": 5}
    stack.wait_published()
    types = [e.body["type"] for e in stack.events(Topic.RUN_EVENTS) if e.body["interval_start"].startswith(DAY)]
    assert [each for each in types if each != "TaskStateChanged"] == [
        *("RunStarted", "RunFailed"),
        *("RunStarted", "RunSucceeded"),
    ]
