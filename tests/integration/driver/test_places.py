"""Real Spark jobs that partition their output themselves, of which each run stages the root: one is published."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.integration.driver.world import World, submitting, world

__all__ = ["submitting", "world"]
pytestmark = pytest.mark.spark


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
