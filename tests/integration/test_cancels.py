"""Cancels and pauses of backfills and of single runs: planner and run-starter as real processes with Spark-free
drivers, on a real Kafka and Postgres.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.definitions import daily
from tests.support.events import Event
from tests.support.installation import Installation, until
from tests.support.servers import Servers
from tests.support.stacks import attempts_of, run_of, shared_stack, stack

from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillPauseRequested,
    BackfillResumeRequested,
    RunCancelRequested,
)
from retrofill_core.contract.topics import Topic

__all__ = ["stack"]
DAY = "2020-01-03"
NEVER = {"INSTANT_SECONDS": "3600"}


@pytest.fixture(scope="module")
def endless(servers: Servers) -> Iterator[Installation]:
    """A stack whose runs never end by themselves."""
    with shared_stack(servers, **NEVER, RETROFILL_DRIVER_SLOTS="16") as made:
        yield made


def cancel(stack: Installation, id: str, *days: str, runs: tuple[int, ...] = ()) -> Event:
    """Request the cancel of these runs. Returns the reply."""
    command = RunCancelRequested.model_validate({"intervals": days, "run_ids": runs})
    return stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, id, command))


def events_of(stack: Installation, run: int) -> list[str]:
    """The types of a run's events, in order."""
    stack.wait_published()
    return [event.body["type"] for event in stack.events(Topic.RUN_EVENTS) if event.body.get("run_id") == run]


def intervals_of(stack: Installation, id: str) -> list[tuple[int, str]]:
    """Which runs of a backfill changed the state of their interval, and to what, in order."""
    stack.wait_published()
    bodies = [event.body for event in stack.events(Topic.INTERVAL_STATES)]
    return [(body["run_id"], body["state"]) for body in bodies if body["backfill_id"] == id]


def test_the_only_run_of_an_attempt_is_cancelled_with_it(endless: Installation) -> None:
    endless.apply(daily("alone", max_active_runs=2))
    id = endless.request("alone", "2020-01-01", "2020-01-02")
    until(lambda: endless.runs_by_state(id) == {"running": 2}, "both run")
    run = run_of(endless, id, "2020-01-02")["id"]
    accepted = cancel(endless, id, runs=(run,)).body
    assert (accepted["type"], accepted["run_ids"]) == ("RunCancelAccepted", [run])
    assert accepted["intervals"] == ["2020-01-02T00:00:00Z"]
    until(lambda: endless.runs_by_state(id) == {"running": 1, "cancelled": 1}, "one is cancelled")
    assert [each["outcome"] for each in attempts_of(endless, id)] == [None, "released"]
    assert events_of(endless, run) == ["RunStarted", "RunCancelled"]
    assert [state for of, state in intervals_of(endless, id) if of == run] == ["running", "cancelled"]
    # A cancel of the whole backfill is the user's last word.
    endless.publish(Topic.BACKFILL_REQUESTS, id, BackfillCancelRequested())
    assert endless.wait_state(id, "cancelled", "failed") == "cancelled"


def test_a_run_that_was_released_and_is_then_cancelled_leaves_its_interval_cancelled(endless: Installation) -> None:
    endless.apply(daily("released", max_active_runs=1, batch_size=5, batch_mode="range"))
    id = endless.request("released", "2020-01-01", "2020-01-02")
    until(lambda: endless.runs_by_state(id).get("running") == 1, "it runs")
    endless.publish(Topic.BACKFILL_REQUESTS, id, BackfillPauseRequested())
    endless.wait_state(id, "paused")
    cancel(endless, id, "2020-01-02")
    until(lambda: endless.runs_by_state(id) == {"queued": 1, "cancelled": 1}, "one is cancelled, one waits")
    cancel(endless, id, "2020-01-01")
    assert endless.wait_state(id, "failed", "succeeded", "cancelled") == "failed"
    assert set(dict(intervals_of(endless, id)).values()) == {"cancelled"}
    run = run_of(endless, id, "2020-01-01")["id"]
    assert events_of(endless, run) == ["RunStarted", "RunAttemptLost", "RunCancelled"]


def test_a_command_is_carried_out_once_and_refused_with_the_reason(endless: Installation) -> None:
    endless.apply(daily("queued", max_active_runs=1, timezone="America/New_York"))
    id = endless.request("queued", "2020-01-01", "2020-01-05")
    until(lambda: endless.runs_by_state(id).get("running") == 1, "the first one runs")
    command = RunCancelRequested.model_validate({"intervals": [DAY, "2020-01-04T00:00:00-05:00"]})
    first = endless.wait_answer(endless.publish(Topic.BACKFILL_REQUESTS, id, command, headers={"ce_id": "once"}))
    endless.publish(Topic.BACKFILL_REQUESTS, id, command, headers={"ce_id": "once"})

    def answers() -> list[dict[str, Any]]:
        bodies = [event.body for event in endless.events(Topic.BACKFILL_EVENTS)]
        return [body for body in bodies if body.get("in_reply_to") == "once"]

    until(lambda: answers() == [first.body] * 2, "it is answered twice")
    until(lambda: endless.runs_by_state(id) == {"running": 1, "queued": 2, "cancelled": 2}, "both are cancelled")
    # They never started, so their intervals have no state.
    assert [state for _, state in intervals_of(endless, id)] == ["running"]
    refused = {
        ("2020-02-01", "2020-01-01"): "the backfill has no run of 2020-02-01: 'retrofill runs list' shows its runs",
        (): "it names no run: give intervals (logical dates) or run_ids",
    }
    for days, why in refused.items():
        answer = cancel(endless, id, *days)
        assert (answer.body["type"], answer.body["command"]) == ("BackfillCommandRejected", "RunCancelRequested")
        assert why in answer.body["message"]
    both = cancel(endless, id, DAY, "2020-01-02").body
    assert (both["type"], both["intervals"], both["left"]) == (
        "RunCancelAccepted",
        ["2020-01-02T05:00:00Z"],
        {"cancelled": 1},
    )
    assert "there is no backfill with this id" in cancel(endless, "nobody", DAY).body["message"]
    endless.publish(Topic.BACKFILL_REQUESTS, id, BackfillCancelRequested())
    endless.wait_state(id, "cancelled")
    message = cancel(endless, id, "2020-01-01").body["message"]
    assert message == "the backfill is cancelled: there is nothing to cancel"


# whole backfills


def test_pause_resume_and_cancel(endless: Installation) -> None:
    endless.apply(daily("whole", max_active_runs=2))
    id = endless.request("whole", "2020-01-01", "2020-03-01")
    until(lambda: endless.runs_by_state(id).get("running") == 2, "two run")
    endless.publish(Topic.BACKFILL_REQUESTS, id, BackfillPauseRequested())
    endless.wait_state(id, "paused")
    assert endless.runs_by_state(id) == {"running": 2, "queued": 59}
    endless.publish(Topic.BACKFILL_REQUESTS, id, BackfillResumeRequested())
    endless.wait_state(id, "running")
    endless.publish(Topic.BACKFILL_REQUESTS, id, BackfillCancelRequested())
    assert endless.wait_state(id, "cancelled", "failed") == "cancelled"
    assert endless.runs_by_state(id) == {"cancelled": 61}
    tasks = "SELECT DISTINCT task_run.state FROM task_run JOIN run ON run.id = run_id WHERE backfill_id = %s"
    assert endless.query(tasks, id) == [{"state": "cancelled"}]
    # The range is available again.
    again = endless.request("whole", "2020-01-01", "2020-03-01")
    assert endless.outcome(again).body["type"] == "BackfillPlanned"
    endless.publish(Topic.BACKFILL_REQUESTS, again, BackfillCancelRequested())
