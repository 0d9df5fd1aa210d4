"""Ranges on real Spark: one call of each task and one job for all intervals, an output for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.driver.world import World, world

from retrofill.states import AttemptMode
from retrofill_core.contract.topics import Topic
from run_starter.executors import LaunchRequest

__all__ = ["world"]
pytestmark = pytest.mark.spark
CODE = """
from pathlib import Path
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", batch_size=3, batch_mode="range", retries=3)

@p.task
def work(run):
    out, days = Path(run.conf["out"]), [interval.start.day for interval in run.intervals]
    with (out / "calls").open("a") as calls:
        calls.write(f"{run.id} {run.attempt} {days}\\n")
    if run.conf.get("bad") in days:
        raise ValueError("this day fails")
    rows = run.spark.createDataFrame([(day, n) for day in days for n in range(day)], "day int, n int")
    to = run.stage_partitions(str(out), "day={interval.start.day}")
    rows.repartition("day").write.partitionBy("day").parquet(to)

@p.task(after=work)
def check(run):
    counted = run.spark.read.parquet(run.staged(run.conf["out"])).groupBy("day").count().collect()
    assert {row["day"]: row["count"] for row in counted} == {i.start.day: i.start.day for i in run.intervals}
"""
BROKEN = CODE.replace("p = Pipeline(", "import no_such_module\np = Pipeline(")


def ranged(world: World, code: str = CODE, **conf: Any) -> LaunchRequest:
    launch = world.launch(CODE, [world.run(day=day) for day in (1, 2, 3)], **conf)
    (world.out / "pipeline.py").write_text(code)
    return replace(launch, mode=AttemptMode.RANGE)


def test_a_range_is_one_job_and_each_interval_has_its_output_and_its_reports(world: World) -> None:
    launch = ranged(world)
    world.executor().launch(launch)
    assert world.host.ended(240)[:3] == (launch.attempt_id, launch.runs[0].id, True)
    assert (world.out / "calls").read_text() == f"{launch.runs[0].id} 1 [1, 2, 3]\n"
    for day, run in enumerate(launch.runs, 1):
        assert world.fields(launch, run) == [
            "RunBegan",
            "TaskReported work running",
            "TaskReported work succeeded",
            "TaskReported check running",
            "TaskReported check succeeded",
            "RunStaged",
            "RunReported succeeded",
        ]
        assert pq.read_table(world.out / f"day={day}").num_rows == day
    assert world.fields(launch)[-1] == "AttemptEnded done"


@pytest.mark.long
def test_a_range_that_fails_is_not_retried_and_says_why_so_that_it_can_be_split(world: World) -> None:
    launch = ranged(world, bad=2)
    world.executor().launch(launch)
    assert world.host.ended(240).reported
    assert (world.out / "calls").read_text().count("\n") == 1
    for run in launch.runs:
        assert world.fields(launch, run)[-1] == "TaskReported check upstream_failed"
    assert world.fields(launch)[-1] == "AttemptEnded failed"
    (end,) = [e.body for e in world.installation.events(Topic.RUN_REPORTS) if e.body["type"] == "AttemptEnded"]
    assert (end["error"]["type"], end["error"]["message"]) == ("ValueError", "this day fails")
    assert [path.name for path in world.out.glob("day=*")] == []


@pytest.mark.long
def test_an_error_that_no_smaller_range_avoids_fails_all_its_runs_at_once(world: World) -> None:
    launch = ranged(world, BROKEN)
    world.executor().launch(launch)
    assert world.host.ended(240).reported
    assert [world.fields(launch, run) for run in launch.runs] == [["RunBegan", "RunReported failed"]] * 3
    assert world.fields(launch)[-1] == "AttemptEnded done"
