"""Deadlines on a real Kafka and Postgres: the moment of each reference, and by whose clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.integration.deadline_events import fields, moment, report, run_of, stack, states
from tests.support.definitions import alert, daily
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.tiers import some

from retrofill_core.contract.topics import partition_of

__all__ = ["stack"]


def test_each_reference_is_the_moment_that_it_names(stack: Installation) -> None:
    fixed = datetime.now(UTC) + timedelta(days=2)
    stack.apply(
        daily(
            "each",
            deadlines=[
                alert("queued", "RUN_QUEUED_AT", 600),
                alert("started", "RUN_STARTED_AT", 700),
                alert("logical", "LOGICAL_DATE", 60),
                alert("logical-far", "LOGICAL_DATE", 2_000_000_000),
                alert("fixed", "FIXED_DATETIME", -3600, at=fixed.isoformat()),
                alert("average", "AVERAGE_RUNTIME", 0, last_n=3, min_runs=2),
                alert("task", "TASK_STARTED_AT", 800, task="only"),
                alert("all", "BACKFILL_REQUESTED_AT", 900),
            ],
        )
    )
    finish_by = datetime.now(UTC) + timedelta(hours=1)
    id = stack.request("each", "2020-01-01", "2020-01-01", finish_by=finish_by.isoformat())
    run = run_of(stack, id, "2020-01-01")
    report(stack, run, "running", task="only")
    until(lambda: "task" in states(stack, "each"), "the task's deadline")
    rows = {row["alert"]: row for row in stack.query("SELECT * FROM deadline WHERE pipeline = 'each'")}
    day = datetime(2020, 1, 1, tzinfo=UTC)
    task_started = stack.value("SELECT started_at FROM task_run WHERE run_id = %s", run["id"])
    expected = {
        "queued": run["queued_at"] + timedelta(seconds=600),
        "started": run["started_at"] + timedelta(seconds=700),
        "logical": day + timedelta(seconds=60),
        "logical-far": day + timedelta(seconds=2_000_000_000),
        "fixed": fixed - timedelta(hours=1),
        "task": task_started + timedelta(seconds=800),
        "all": stack.value("SELECT requested_at FROM backfill WHERE id = %s", id) + timedelta(seconds=900),
        "finish_by": finish_by,
    }
    assert {name: rows[name]["due_at"] for name in expected} == expected
    void = {name: row["reason"] for name, row in rows.items() if row["state"] == "void"}
    assert void == {
        "logical": "already past when it was armed",
        "average": "the average needs 2 successful runs, but there are 0",
    }
    assert {row["state"] for name, row in rows.items() if name not in void} == {"armed"}
    assert {name for name, row in rows.items() if row["run_id"] is None} == {"all", "finish_by"}
    for row in rows.values():
        assert row["shard"] == partition_of(str(row["id"]), PARTITIONS)


def test_a_task_has_its_own_moment_and_a_later_attempt_arms_nothing_anew(stack: Installation) -> None:
    stack.apply(
        daily(
            "tasks",
            tasks=("a", "b"),
            deadlines=[
                alert("a-slow", "TASK_STARTED_AT", 3600, task="a"),
                alert("b-slow", "TASK_STARTED_AT", 0.5, task="b"),
                alert("run-slow", "RUN_STARTED_AT", 3600),
            ],
        )
    )

    def armed() -> list[dict[str, Any]]:
        return stack.query("SELECT alert, id, due_at FROM deadline WHERE pipeline = 'tasks' ORDER BY id")

    id = stack.request("tasks", "2020-01-01", "2020-01-01")
    run = run_of(stack, id, "2020-01-01")
    report(stack, run, "running", task="a")
    report(stack, run, "lost")
    until(lambda: stack.value("SELECT attempt FROM run WHERE id = %s", run["id"]) == 2, "the second attempt")
    first = armed()
    assert {row["alert"] for row in first} == {"a-slow", "run-slow"}
    again = run_of(stack, id, "2020-01-01")
    report(stack, again, "running", task="a")
    report(stack, again, "succeeded", task="a")
    report(stack, again, "running", task="b")
    until(lambda: states(stack, "tasks").get("b-slow") == ["missed"], "b is late")
    assert states(stack, "tasks")["a-slow"] == ["met"]
    assert armed()[: len(first)] == first
    stack.wait_published()
    (miss,) = fields(stack, pipeline="tasks")
    assert (miss.body["scope"], miss.body["task"], miss.body["run_state"]) == ("task", "b", "running")
    assert miss.body["run_attempt"] == 2
    report(stack, again, "succeeded", task="b")
    until(lambda: len(fields(stack, "DeadlineRecovered", pipeline="tasks")) == 1, "b is done")
    (back,) = fields(stack, "DeadlineRecovered", pipeline="tasks")
    assert (back.body["scope"], back.body["task"]) == ("task", "b")
    assert stack.value("SELECT state FROM run WHERE id = %s", run["id"]) == "running"


@pytest.mark.long
def test_the_average_counts_only_once_there_are_enough_successes(installation: Installation) -> None:
    installation.start("backfill-planner", wait=False)
    installation.start("instant-starter", INSTANT_SECONDS="0.3", RETROFILL_DRIVER_SLOTS="1")
    installation.apply(daily(deadlines=[alert("slower", "AVERAGE_RUNTIME", 60, last_n=2, min_runs=2)]))
    id = installation.request("p", "2020-01-01", "2020-01-04", max_active_runs=1)
    assert installation.wait_state(id, "succeeded", "failed") == "succeeded"
    rows = installation.query(
        "SELECT d.state, d.due_at, r.started_at, r.finished_at FROM deadline d JOIN run r ON r.id = d.run_id"
        " ORDER BY r.position"
    )
    assert [row["state"] for row in rows[:2]] == ["void", "void"]
    for n, row in enumerate(rows[2:], 2):
        took = [before["finished_at"] - before["started_at"] for before in rows[n - 2 : n]]
        expected = row["started_at"] + sum(took, timedelta()) / 2 + timedelta(seconds=60)
        assert abs(row["due_at"] - expected) <= timedelta(microseconds=1)


def test_a_whole_backfill_may_be_late(stack: Installation) -> None:
    stack.apply(daily("whole", max_active_runs=1, deadlines=[alert("all", "BACKFILL_REQUESTED_AT", 1.5)]))
    past = stack.request("whole", "2020-01-01", "2020-01-02", finish_by="2020-02-01T00:00:00+00:00")
    refused = stack.outcome(past).body
    assert (refused["type"], refused["reason"]) == ("BackfillRejected", "finish_by_past")
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
    id = stack.request("whole", "2020-01-01", "2020-01-02", finish_by=soon)
    report(stack, run_of(stack, id, "2020-01-01"), "succeeded")
    until(lambda: len(fields(stack, pipeline="whole")) == 2, "both are missed")
    for miss in fields(stack, pipeline="whole"):
        assert (miss.body["scope"], miss.body["run_state"], miss.body["runs"]) == ("backfill", "running", 2)
        assert miss.body["runs_done"] in (0, 1)
        assert "run_id" not in miss.body
    report(stack, run_of(stack, id, "2020-01-02"), "succeeded")
    until(lambda: len(fields(stack, "DeadlineRecovered", pipeline="whole")) == 2, "both recover")
    assert {e.body["alert"] for e in fields(stack, "DeadlineRecovered", pipeline="whole")} == {"all", "finish_by"}
    assert states(stack, "whole") == {"all": ["missed"], "finish_by": ["missed"]}


@pytest.mark.parametrize("seconds", some([3600, -3600], 3600))
def test_only_the_databases_clock_counts(installation: Installation, seconds: int) -> None:
    installation.start("backfill-planner")
    installation.start("deadline-watcher", clock_off=seconds)
    installation.apply(daily(deadlines=[alert("soon", "RUN_QUEUED_AT", 1), alert("far", "RUN_QUEUED_AT", 1800)]))
    installation.request("p", "2020-01-01", "2020-01-05")
    until(lambda: len(fields(installation)) == 5, "the near ones are missed")
    for event in fields(installation):
        late = moment(event.body["detected_at"]) - moment(event.body["due_at"])
        assert timedelta(0) <= late < timedelta(minutes=1)
    assert states(installation)["far"] == ["armed"] * 5


def test_an_edit_of_the_pipeline_changes_later_runs_only(stack: Installation) -> None:
    stack.apply(daily("edited", max_active_runs=1, deadlines=[alert("old", "RUN_STARTED_AT", 3600)]))
    id = stack.request("edited", "2020-01-01", "2020-01-02")
    run = run_of(stack, id, "2020-01-01")
    stack.apply(daily("edited", max_active_runs=1, deadlines=[alert("new", "RUN_STARTED_AT", 3600)]))
    report(stack, run, "succeeded")
    run_of(stack, id, "2020-01-02")
    assert states(stack, "edited").keys() == {"old"}
    later = stack.request("edited", "2020-02-01", "2020-02-01")
    report(stack, run_of(stack, id, "2020-01-02"), "succeeded")
    run_of(stack, later, "2020-02-01")
    assert stack.query("SELECT DISTINCT alert FROM deadline WHERE backfill_id = %s", later) == [{"alert": "new"}]
