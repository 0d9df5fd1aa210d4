"""Deadlines that pass on a real Kafka and Postgres: the events of a miss and a recovery, and what
was not decided at once.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.integration.deadline_events import fields, moment, report, run_of, stack, states
from tests.support.definitions import alert, daily
from tests.support.installation import PARTITIONS, Installation, until

from retrofill_core.contract.topics import Topic

__all__ = ["stack"]


def test_a_miss_is_told_completely_and_its_recovery_with_how_late_it_was(stack: Installation) -> None:
    stack.apply(
        daily(
            "told",
            max_active_runs=2,
            deadlines=[
                alert("soon", "RUN_STARTED_AT", 1),
                alert("warning", "RUN_STARTED_AT", 0.5),
                alert("far", "RUN_STARTED_AT", 3600, fire_on_failure=True),
            ],
        )
    )
    id = stack.request("told", "2020-01-01", "2020-01-03", run_backwards=True)
    run = run_of(stack, id, "2020-01-03")
    other = run_of(stack, id, "2020-01-02")
    until(lambda: len(fields(stack, pipeline="told")) == 4, "both alerts of both runs")
    report(stack, run, "succeeded")
    back = stack.wait_event(
        Topic.DEADLINE_MISSED,
        lambda e: (e.body["type"], e.body["alert"], e.body["pipeline"]) == ("DeadlineRecovered", "soon", "told"),
        "the recovery",
    )
    (miss,) = [e for e in fields(stack, pipeline="told") if e.body["alert"] == "soon" and e.body["run_id"] == run["id"]]
    finished_at = stack.value("SELECT finished_at FROM run WHERE id = %s", run["id"])
    due_at = run["started_at"] + timedelta(seconds=1)
    assert miss.key == back.key == str(miss.body["deadline_id"])
    assert {name: miss.body[name] for name in miss.body if name not in ("detected_at", "deadline_id")} == {
        "type": "DeadlineMissed",
        "version": 1,
        "alert": "soon",
        "scope": "run",
        "pipeline": "told",
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
    until(lambda: states(stack, "told")["far"].count("met") == 1, "the far one of the good run is met")
    # It fires on failure, but not before it is due.
    assert stack.value("SELECT state FROM deadline WHERE run_id = %s AND alert = 'far'", other["id"]) == "armed"
    recovered = fields(stack, "DeadlineRecovered", pipeline="told")
    assert sorted((e.body["alert"], e.body["run_id"]) for e in recovered) == [
        ("soon", run["id"]),
        ("warning", run["id"]),
    ]


def test_what_ended_otherwise_before_the_moment_is_void_and_one_that_fires_on_failure_is_missed(
    stack: Installation,
) -> None:
    stack.apply(
        daily(
            "otherwise",
            deadlines=[
                alert("let-off", "RUN_STARTED_AT", 2),
                alert("fires", "RUN_STARTED_AT", 2, fire_on_failure=True),
                alert("past", "RUN_QUEUED_AT", -5, fire_if_past=True),
            ],
        )
    )
    id = stack.request("otherwise", "2020-01-01", "2020-01-01")
    run = run_of(stack, id, "2020-01-01")
    report(stack, run, "failed")
    until(
        lambda: states(stack, "otherwise") == {"let-off": ["void"], "fires": ["missed"], "past": ["missed"]},
        "all are decided",
    )
    assert stack.value("SELECT reason FROM deadline WHERE alert = 'let-off'") == "the run failed before the moment"
    stack.wait_published()
    (fired,) = [e for e in fields(stack, pipeline="otherwise") if e.body["alert"] == "fires"]
    assert moment(fired.body["detected_at"]) >= moment(fired.body["due_at"])
    assert fired.body["run_state"] == "failed"
    assert not fields(stack, "DeadlineRecovered", pipeline="otherwise")


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
