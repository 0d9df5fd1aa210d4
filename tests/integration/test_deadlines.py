"""Deadlines on a real Kafka and Postgres: the moment of each reference, and the events when it
passes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.support.installation import PARTITIONS, Event, Installation, alert, daily, until

from retrofill.contract.deadlines import DeadlineArmed
from retrofill.contract.partitioning import partition_of
from retrofill.contract.runs import ErrorInfo, RunReported, TaskReported
from retrofill.contract.topics import Topic

NEVER = "3600"


@pytest.fixture
def stack(installation: Installation) -> Installation:
    """A planner, a watcher, and a run-starter whose drivers run until the test reports for them."""
    installation.start("backfill-planner", wait=False)
    installation.start("instant-starter", wait=False, INSTANT_SECONDS=NEVER, RETROFILL_DRIVER_SLOTS="8")
    installation.start("deadline-watcher")
    return installation


def run_of(stack: Installation, id: str, day: str) -> dict[str, Any]:
    """Wait until the day's run is running. Returns it."""
    found: list[dict[str, Any]] = []

    def runs() -> bool:
        found[:] = stack.query(
            "SELECT * FROM run WHERE backfill_id = %s AND interval_start = %s AND state = 'running'", id, day
        )
        return bool(found)

    until(runs, f"the run of {day} runs")
    return found[0]


def report(stack: Installation, run: dict[str, Any], state: str, task: str | None = None) -> None:
    """Publish a report as a driver would."""
    fields = {"backfill_id": run["backfill_id"], "run_id": run["id"], "attempt": run["attempt"], "state": state}
    error = ErrorInfo(type="ValueError", message="bad") if state == "failed" else None
    message = RunReported(**fields, error=error) if task is None else TaskReported(**fields, task=task, error=error)
    stack.publish(Topic.RUN_REPORTS, run["backfill_id"], message)


def fields(stack: Installation, *types: str) -> list[Event]:
    """The events about deadlines."""
    return [e for e in stack.events(Topic.DEADLINE_MISSED) if e.body["type"] in (types or ("DeadlineMissed",))]


def states(stack: Installation) -> dict[str, list[str]]:
    """The deadlines' states, by alert."""
    found: dict[str, list[str]] = {}
    for row in stack.query("SELECT alert, state FROM deadline ORDER BY alert, id"):
        found.setdefault(row["alert"], []).append(row["state"])
    return found


def moment(text: str) -> datetime:
    """A timestamp of an event."""
    return datetime.fromisoformat(text)


def test_each_reference_is_the_moment_that_it_names(stack: Installation) -> None:
    fixed = datetime.now(UTC) + timedelta(days=2)
    stack.apply(
        daily(
            deadlines=[
                alert("queued", "RUN_QUEUED_AT", 600),
                alert("started", "RUN_STARTED_AT", 700),
                alert("logical", "LOGICAL_DATE", 60),
                alert("logical-far", "LOGICAL_DATE", 2_000_000_000),
                alert("fixed", "FIXED_DATETIME", -3600, at=fixed.isoformat()),
                alert("average", "AVERAGE_RUNTIME", 0, last_n=3, min_runs=2),
                alert("task", "TASK_STARTED_AT", 800, task="only"),
                alert("all", "BACKFILL_REQUESTED_AT", 900),
            ]
        )
    )
    finish_by = datetime.now(UTC) + timedelta(hours=1)
    id = stack.request("p", "2020-01-01", "2020-01-01", finish_by=finish_by.isoformat())
    run = run_of(stack, id, "2020-01-01")
    report(stack, run, "running", task="only")
    until(lambda: "task" in states(stack), "the task's deadline")
    rows = {row["alert"]: row for row in stack.query("SELECT * FROM deadline")}
    day = datetime(2020, 1, 1, tzinfo=UTC)
    task_started = stack.value("SELECT started_at FROM task_run")
    expected = {
        "queued": run["queued_at"] + timedelta(seconds=600),
        "started": run["started_at"] + timedelta(seconds=700),
        "logical": day + timedelta(seconds=60),
        "logical-far": day + timedelta(seconds=2_000_000_000),
        "fixed": fixed - timedelta(hours=1),
        "task": task_started + timedelta(seconds=800),
        "all": stack.value("SELECT requested_at FROM backfill") + timedelta(seconds=900),
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


def test_a_miss_is_told_completely_and_its_recovery_with_how_late_it_was(stack: Installation) -> None:
    stack.apply(
        daily(
            max_active_runs=2,
            deadlines=[
                alert("soon", "RUN_STARTED_AT", 1),
                alert("warning", "RUN_STARTED_AT", 0.5),
                alert("far", "RUN_STARTED_AT", 3600, fire_on_failure=True),
            ],
        )
    )
    id = stack.request("p", "2020-01-01", "2020-01-03", run_backwards=True)
    run = run_of(stack, id, "2020-01-03")
    other = run_of(stack, id, "2020-01-02")
    until(lambda: len(fields(stack)) == 4, "both alerts of both runs")
    report(stack, run, "succeeded")
    back = stack.wait_event(
        Topic.DEADLINE_MISSED,
        lambda e: e.body["type"] == "DeadlineRecovered" and e.body["alert"] == "soon",
        "the recovery",
    )
    (miss,) = [e for e in fields(stack) if e.body["alert"] == "soon" and e.body["run_id"] == run["id"]]
    finished_at = stack.value("SELECT finished_at FROM run WHERE id = %s", run["id"])
    due_at = run["started_at"] + timedelta(seconds=1)
    assert miss.key == back.key == str(miss.body["deadline_id"])
    assert {name: miss.body[name] for name in miss.body if name not in ("detected_at", "deadline_id")} == {
        "type": "DeadlineMissed",
        "version": 1,
        "alert": "soon",
        "scope": "run",
        "pipeline": "p",
        "backfill_id": id,
        "run_id": run["id"],
        "interval_start": "2020-01-03T00:00:00Z",
        "interval_end": "2020-01-04T00:00:00Z",
        "reference": "RUN_STARTED_AT",
        "interval_seconds": 1.0,
        "due_at": miss.body["due_at"],
        "run_state": "running",
        "run_attempt": 1,
        "runs_done": 0,
        "runs": 3,
    }
    assert moment(miss.body["due_at"]) == due_at <= moment(miss.body["detected_at"])
    assert moment(back.body["recovered_at"]) == finished_at
    assert back.body["late_seconds"] == pytest.approx((finished_at - due_at).total_seconds())
    report(stack, other, "failed")
    until(lambda: "void" in stack.runs_by_state(id) or stack.runs_by_state(id).get("failed") == 1, "the other failed")
    until(lambda: states(stack)["far"].count("met") == 1, "the far one of the good run is met")
    # It fires on failure, but not before it is due.
    assert stack.value("SELECT state FROM deadline WHERE run_id = %s AND alert = 'far'", other["id"]) == "armed"
    recovered = fields(stack, "DeadlineRecovered")
    assert sorted((e.body["alert"], e.body["run_id"]) for e in recovered) == [
        ("soon", run["id"]),
        ("warning", run["id"]),
    ]


def test_what_ended_otherwise_before_the_moment_is_void_and_one_that_fires_on_failure_is_missed(
    stack: Installation,
) -> None:
    stack.apply(
        daily(
            deadlines=[
                alert("let-off", "RUN_STARTED_AT", 2),
                alert("fires", "RUN_STARTED_AT", 2, fire_on_failure=True),
                alert("past", "RUN_QUEUED_AT", -5, fire_if_past=True),
            ]
        )
    )
    id = stack.request("p", "2020-01-01", "2020-01-01")
    run = run_of(stack, id, "2020-01-01")
    report(stack, run, "failed")
    until(lambda: states(stack) == {"let-off": ["void"], "fires": ["missed"], "past": ["missed"]}, "all are decided")
    assert stack.value("SELECT reason FROM deadline WHERE alert = 'let-off'") == "the run failed before the moment"
    (fired,) = [e for e in fields(stack) if e.body["alert"] == "fires"]
    assert moment(fired.body["detected_at"]) >= moment(fired.body["due_at"])
    assert fired.body["run_state"] == "failed"
    assert not fields(stack, "DeadlineRecovered")


def test_a_task_has_its_own_moment_and_a_later_attempt_arms_nothing_anew(stack: Installation) -> None:
    stack.apply(
        daily(
            tasks=("a", "b"),
            deadlines=[
                alert("a-slow", "TASK_STARTED_AT", 3600, task="a"),
                alert("b-slow", "TASK_STARTED_AT", 0.5, task="b"),
                alert("run-slow", "RUN_STARTED_AT", 3600),
            ],
        )
    )
    id = stack.request("p", "2020-01-01", "2020-01-01")
    run = run_of(stack, id, "2020-01-01")
    report(stack, run, "running", task="a")
    report(stack, run, "lost")
    until(lambda: stack.value("SELECT attempt FROM run") == 2, "the second attempt")
    first = stack.query("SELECT alert, id, due_at FROM deadline ORDER BY id")
    assert {row["alert"] for row in first} == {"a-slow", "run-slow"}
    again = run_of(stack, id, "2020-01-01")
    report(stack, again, "running", task="a")
    report(stack, again, "succeeded", task="a")
    report(stack, again, "running", task="b")
    until(lambda: states(stack).get("b-slow") == ["missed"], "b is late")
    assert states(stack)["a-slow"] == ["met"]
    assert stack.query("SELECT alert, id, due_at FROM deadline ORDER BY id")[: len(first)] == first
    (miss,) = fields(stack)
    assert (miss.body["scope"], miss.body["task"], miss.body["run_state"]) == ("task", "b", "running")
    assert miss.body["run_attempt"] == 2
    report(stack, again, "succeeded", task="b")
    back = stack.wait_event(Topic.DEADLINE_MISSED, lambda e: e.body["type"] == "DeadlineRecovered", "b is done")
    assert (back.body["scope"], back.body["task"]) == ("task", "b")
    assert stack.value("SELECT state FROM run") == "running"


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
    stack.apply(daily(max_active_runs=1, deadlines=[alert("all", "BACKFILL_REQUESTED_AT", 1.5)]))
    past = stack.request("p", "2020-01-01", "2020-01-02", finish_by="2020-02-01T00:00:00+00:00")
    refused = stack.outcome(past).body
    assert (refused["type"], refused["reason"]) == ("BackfillRejected", "finish_by_past")
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
    id = stack.request("p", "2020-01-01", "2020-01-02", finish_by=soon)
    report(stack, run_of(stack, id, "2020-01-01"), "succeeded")
    until(lambda: len(fields(stack)) == 2, "both are missed")
    for miss in fields(stack):
        assert (miss.body["scope"], miss.body["run_state"], miss.body["runs"]) == ("backfill", "running", 2)
        assert miss.body["runs_done"] in (0, 1)
        assert "run_id" not in miss.body
    report(stack, run_of(stack, id, "2020-01-02"), "succeeded")
    until(lambda: len(fields(stack, "DeadlineRecovered")) == 2, "both recover")
    assert {e.body["alert"] for e in fields(stack, "DeadlineRecovered")} == {"all", "finish_by"}
    assert states(stack) == {"all": ["missed"], "finish_by": ["missed"]}


def test_a_digest_is_one_event_and_one_callback_for_all_that_were_missed_in_its_window(
    installation: Installation,
) -> None:
    installation.start("backfill-planner", wait=False)
    for _ in range(2):
        installation.start("deadline-watcher", wait=False)
    quiet = alert(
        "quiet",
        "RUN_QUEUED_AT",
        1,
        digest_seconds=2,
        callback="page",
        kwargs={"n": "{digest.count}", "of": "{pipeline}"},
    )
    installation.apply(daily(deadlines=[quiet]))
    id = installation.request("p", "2020-01-01", "2020-01-30")
    until(lambda: len(fields(installation, "DeadlinesMissed")) == 1, "the digest")
    (event,) = fields(installation, "DeadlinesMissed")
    ids = installation.query("SELECT id FROM deadline WHERE state = 'missed' ORDER BY id")
    assert sorted(each["deadline_id"] for each in event.body["missed"]) == [row["id"] for row in ids]
    assert (event.body["count"], event.body["parts"], len(ids)) == (30, 1, 30)
    assert event.key == str(event.body["digest_id"])
    assert moment(event.body["closed_at"]) - moment(event.body["opened_at"]) >= timedelta(seconds=2)
    (row,) = installation.query("SELECT * FROM callback")
    assert (row["deadline_id"], row["kwargs"]) == (event.body["digest_id"], {"n": "30", "of": "p"})
    assert row["event"]["type"] == "DeadlinesMissed"
    installation.start("instant-starter", RETROFILL_DRIVER_SLOTS="8")
    assert installation.wait_state(id, "succeeded", "failed") == "succeeded"
    until(lambda: len(fields(installation, "DeadlineRecovered")) == 30, "all recover")
    # After the digest and in its order, because it has the same key.
    assert {e.key for e in fields(installation, "DeadlineRecovered")} == {event.key}
    assert not fields(installation)


def test_what_became_due_while_nobody_watched_is_told_first_to_last_and_once(installation: Installation) -> None:
    installation.start("backfill-planner")
    installation.apply(
        daily(deadlines=[alert(f"after-{n}", "RUN_QUEUED_AT", n / 10, fire_if_past=True) for n in range(10)])
    )
    id = installation.request("p", "2020-01-01", "2020-02-29")
    installation.outcome(id)
    until(
        lambda: installation.value("SELECT count(*) FROM deadline WHERE due_at > clock_timestamp()") == 0, "all are due"
    )
    watcher = installation.start("deadline-watcher", wait=False)
    until(lambda: len(fields(installation)) >= 300, "the first half")
    watcher.kill()
    installation.start("deadline-watcher", wait=False)
    until(lambda: len(fields(installation)) >= 600, "all are told")
    assert installation.value("SELECT count(*) FROM deadline WHERE state <> 'missed'") == 0
    missed = fields(installation)
    assert len(missed) == len({e.body["deadline_id"] for e in missed}) == 600
    for partition in range(PARTITIONS):
        moments = [moment(e.body["due_at"]) for e in missed if e.partition == partition]
        assert moments == sorted(moments)


def test_one_that_cannot_be_decided_stops_no_other_of_its_shard(installation: Installation) -> None:
    installation.start("backfill-planner")
    installation.apply(daily(deadlines=[alert("soon", "RUN_QUEUED_AT", 2)]))
    id = installation.request("p", "2020-01-01", "2020-01-20")
    installation.outcome(id)
    with installation.session() as owner:
        # A reference that no release writes, in one deadline of each shard.
        owner.execute(
            "UPDATE deadline SET reference = 'NONSENSE' WHERE id IN (SELECT min(id) FROM deadline GROUP BY shard)"
        )
        owner.commit()
    bad = {row["id"] for row in installation.query("SELECT id FROM deadline WHERE reference = 'NONSENSE'")}
    watcher = installation.start("deadline-watcher")
    until(lambda: len(fields(installation)) == 20 - len(bad), "all others are told")
    armed = {row["id"] for row in installation.query("SELECT id FROM deadline WHERE state = 'armed'")}
    assert armed == bad
    assert watcher.said().count("deadline_set_aside") == len(bad)


@pytest.mark.parametrize("seconds", [3600, -3600])
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
    stack.apply(daily(max_active_runs=1, deadlines=[alert("old", "RUN_STARTED_AT", 3600)]))
    id = stack.request("p", "2020-01-01", "2020-01-02")
    run = run_of(stack, id, "2020-01-01")
    stack.apply(daily(max_active_runs=1, deadlines=[alert("new", "RUN_STARTED_AT", 3600)]))
    report(stack, run, "succeeded")
    run_of(stack, id, "2020-01-02")
    assert states(stack).keys() == {"old"}
    later = stack.request("p", "2020-02-01", "2020-02-01")
    report(stack, run_of(stack, id, "2020-01-02"), "succeeded")
    run_of(stack, later, "2020-02-01")
    assert stack.query("SELECT DISTINCT alert FROM deadline WHERE backfill_id = %s", later) == [{"alert": "new"}]


def test_each_miss_is_in_one_digest_however_windows_open_and_close_under_it(installation: Installation) -> None:
    count = 400
    installation.start("backfill-planner", wait=False)
    for _ in range(3):
        installation.start("deadline-watcher", wait=False)
    installation.apply(daily())
    id = installation.request("p", "2020-01-01", "2021-02-03")
    assert installation.outcome(id).body["runs"] == count
    run_ids = [row["id"] for row in installation.query("SELECT id FROM run ORDER BY id")]
    begins = datetime.now(UTC) + timedelta(seconds=1)
    with installation.session() as owner:
        ids = [
            row[0]
            for row in owner.execute(
                "SELECT nextval(pg_get_serial_sequence('retrofill.deadline', 'id')) FROM generate_series(1, %s)",
                [count],
            )
        ]
        for n, (deadline_id, run_id) in enumerate(zip(ids, run_ids, strict=True)):
            owner.execute(
                "INSERT INTO deadline (id, shard, alert, pipeline, backfill_id, run_id, reference, due_at, state,"
                " digest_seconds, callback) VALUES (%s, %s, 'quiet', 'p', %s, %s, 'RUN_QUEUED_AT', %s, 'armed', 1, 'page')",
                [
                    deadline_id,
                    partition_of(str(deadline_id), PARTITIONS),
                    id,
                    run_id,
                    begins + timedelta(seconds=n * 5 / count),
                ],
            )
        owner.commit()
    for shard in range(PARTITIONS):
        first = next(each for each in ids if partition_of(str(each), PARTITIONS) == shard)
        installation.publish(Topic.DEADLINES, str(first), DeadlineArmed(deadline_id=first, due_at=begins))
    listed: list[int] = []

    def all_listed() -> bool:
        listed[:] = [each["deadline_id"] for e in fields(installation, "DeadlinesMissed") for each in e.body["missed"]]
        return len(listed) >= count

    until(all_listed, "all are told")
    assert sorted(listed) == ids
    digests = fields(installation, "DeadlinesMissed")
    assert len(digests) > 2
    assert sum(e.body["count"] for e in digests) == count
    assert sorted(e.body["digest_id"] for e in digests) == [
        row["deadline_id"] for row in installation.query("SELECT deadline_id FROM callback ORDER BY 1")
    ]
    windows = sorted((moment(e.body["opened_at"]), moment(e.body["closed_at"])) for e in digests)
    for (_, closed), (opened, _) in pairwise(windows):
        assert closed <= opened, "one window of an alert is open at a time"


def test_a_run_that_was_locked_when_it_had_ended_is_come_back_to(installation: Installation) -> None:
    installation.start("backfill-planner", wait=False)
    installation.start("instant-starter", wait=False, RETROFILL_DRIVER_SLOTS="1")
    installation.apply(daily(deadlines=[alert("far", "RUN_QUEUED_AT", 86_400)]))
    id = installation.request("p", "2020-01-01", "2020-01-01")
    installation.wait_state(id, "succeeded")
    (row,) = installation.query("SELECT id, run_id FROM deadline")
    until(lambda: bool(installation.events(Topic.DEADLINES)), "the watcher has something to read")
    with installation.session() as other:
        other.execute("SELECT 1 FROM run WHERE id = %s FOR NO KEY UPDATE", [row["run_id"]])
        installation.start("deadline-watcher")
        read = "SELECT sum(next_offset) FROM deadline_watcher_shard_offset"
        until(lambda: (installation.value(read) or 0) > 0, "the watcher has read that the run ended")
        assert states(installation) == {"far": ["armed"]}
    until(lambda: states(installation) == {"far": ["met"]}, "the deadline is met, a day before its moment")


def test_what_a_former_owner_meant_to_come_back_to_is_decided_by_the_next(installation: Installation) -> None:
    installation.start("backfill-planner", wait=False)
    installation.start("instant-starter", wait=False, RETROFILL_DRIVER_SLOTS="1")
    installation.apply(
        daily(
            deadlines=[
                alert("far", "RUN_QUEUED_AT", 86_400),
                alert("whole", "BACKFILL_REQUESTED_AT", 86_400),
                alert("failed", "RUN_QUEUED_AT", 86_400, fire_on_failure=True),
            ]
        )
    )
    installation.wait_state(installation.request("p", "2020-01-01", "2020-01-01"), "succeeded")
    watcher = installation.start("deadline-watcher")
    everything = {"far": ["met"], "whole": ["met"], "failed": ["met"]}
    until(lambda: states(installation) == everything, "all are met")
    watcher.stop()
    # All messages are consumed, so the next owner learns of these deadlines from the rows only.
    installation.query("UPDATE deadline SET state = 'armed', decided_at = NULL RETURNING 1")
    installation.start("deadline-watcher")
    until(lambda: states(installation) == everything, "all are met")
