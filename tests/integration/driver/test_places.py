"""Real Spark jobs that partition their output themselves, of which each run stages the root: one is published."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from tests.integration.driver.world import World, submitting, world

from retrofill_core.contract.topics import Topic

__all__ = ["submitting", "world"]
pytestmark = pytest.mark.spark
FUNCTION = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", timezone="America/New_York", batch_size=4)

@p.task
def work(run):
    days = run.spark.createDataFrame([(f"{run.interval.start:%Y-%m-%d}", n) for n in range(3)], "day string, n int")
    days.write.partitionBy("day").parquet(run.stage(run.conf["out"] + "/root"))
"""
SCRIPTS = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", timezone="America/New_York", batch_size=4)
p.submit("write", "write.py", args=["{stage:{conf[out]}/root}", "{interval.start:%Y-%m-%d}"])
"""
SCRIPT = """
import sys
from pyspark.sql import SparkSession
days = SparkSession.builder.getOrCreate().createDataFrame([(sys.argv[2], n) for n in range(3)], "day string, n int")
days.write.partitionBy("day").parquet(sys.argv[1])
"""


@pytest.mark.long
@pytest.mark.parametrize("way", ["function", "script"])
def test_of_the_days_that_stage_their_root_one_is_published_and_the_next_is_told(
    way: str, request: pytest.FixtureRequest
) -> None:
    of: World = request.getfixturevalue("world" if way == "function" else "submitting")
    (of.out / "write.py").write_text(SCRIPT)
    launch = of.launch(FUNCTION if way == "function" else SCRIPTS, [of.run(day=day) for day in (1, 2, 3, 4)])
    of.executor(script_allow=[f"{of.out}/*"]).launch(launch)
    assert of.host.ended(800).reported, of.log(launch)
    first, second, *others = launch.runs
    assert of.fields(launch, first)[-1] == "RunReported succeeded", of.log(launch)
    assert of.fields(launch, second)[-1] == "RunReported failed"
    assert [of.fields(launch, run) for run in others] == [[], []]
    bodies = [event.body for event in of.installation.events(Topic.RUN_REPORTS)]
    (error,) = [b["error"] for b in bodies if b.get("run_id") == second.id and b["type"] == "RunReported"]
    assert error["type"] == "PlaceTaken"
    assert (
        f"root belongs to the interval 2013-01-01T00:00:00-05:00 of pipeline p, which run {first.id} has"
        in error["message"]
    )
    assert set(pq.read_table(of.out / "root").column("day").to_pylist()) == {"2013-01-01"}


REVIEWED = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")

def days(run):
    return run.spark.range(3).write

def write(run, path):
    days(run).parquet(run.stage(path) if run.conf["stages"] else path)

@p.task(retries=2, writes_nothing=WRITES_NOTHING)
def work(run):
    write(run, run.conf["out"] + "/days")
"""


def test_a_reviewed_task_that_staged_nothing_fails_its_run_at_once_unless_it_was_declared(world: World) -> None:
    executor = world.executor()
    ends = {}
    for stages, declared in ((True, False), (False, True), (False, False)):
        code = REVIEWED.replace("WRITES_NOTHING", str(declared))
        launch = replace(world.launch(code, stages=stages, out=f"{world.out}/{stages}-{declared}"), review=True)
        executor.launch(launch)
        world.host.ended()
        (last,) = [each for each in world.bodies(launch) if each["type"] == "RunReported"]
        ends[stages, declared] = (last["state"], (last.get("error") or {}).get("message", "")[:42])
    # A retry of the task would have failed by itself: its directory is there already.
    refused = ("failed", "task 'work' staged nothing, although a rev")
    assert ends == {(True, False): ("succeeded", ""), (False, True): ("succeeded", ""), (False, False): refused}
