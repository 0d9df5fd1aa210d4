"""Batches on real Spark: the runs of an attempt share one session, and none sees what another left
in it.
"""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.driver.world import World, world
from tests.support.tiers import some

from retrofill.protocol.launch import LaunchedRun
from run_starter.executors import LaunchRequest

__all__ = ["world"]
pytestmark = pytest.mark.spark
CODE = """
import os
from pathlib import Path
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", batch_size=3, spark_conf={"spark.sql.shuffle.partitions": 3})

@p.task
def work(run):
    spark, out, day = run.spark, Path(run.conf["out"]), run.interval.start.day
    session = getattr(spark, "session_id", None) or spark.sparkContext.applicationId
    found = [
        spark.catalog.tableExists("mine"), spark.conf.get("spark.sql.shuffle.partitions"),
        spark.conf.get("my.own", None), spark.catalog.currentDatabase(), sorted(spark.getTags()),
    ]
    (out / f"found-{run.id}").write_text(repr([os.getpid(), session, found]))
    spark.range(day).createOrReplaceTempView("mine")
    spark.conf.set("spark.sql.shuffle.partitions", 7)
    spark.conf.set("my.own", "set")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS other LOCATION '{out}/other'")
    spark.catalog.setCurrentDatabase("other")
    spark.addTag("mine")
    if day == run.conf.get("bad"):
        if run.conf["dies"]:
            os.kill(os.getpid(), 9)
        raise ValueError("this day fails")
    spark.table("mine").write.parquet(run.stage(str(out / f"day={day}")))
    if run.conf.get("stops"):
        spark.stop()
"""


def found_by(world: World, run_id: int) -> list[Any]:
    """The process and the session of a run, and what it found there."""
    found: list[Any] = eval((world.out / f"found-{run_id}").read_text())
    return found


def fresh(launch: LaunchRequest, run: LaunchedRun) -> list[Any]:
    """What a run finds in its session: nothing of another run, and the tags of its attempt and its task."""
    tag = f"retrofill-attempt-{launch.attempt_id}"
    return [False, "3", None, "default", [tag, f"{tag}-run-{run.id}-work"]]


@pytest.mark.parametrize("executor", some(["pool", "spark-submit"], "pool"))
def test_the_runs_of_an_attempt_share_one_session_that_is_cleared_between_them(world: World, executor: str) -> None:
    runs = [world.run(day=day) for day in (1, 2, 3)]
    code = CODE.replace('"p", ', f'"p", executor="{executor}", ')
    launch = world.launch(code, runs)
    world.executor().launch(launch)
    assert world.host.ended(240)[:3] == (launch.attempt_id, runs[-1].id, True)
    found = [found_by(world, run.id) for run in runs]
    assert [state for *_, state in found] == [fresh(launch, run) for run in runs]
    assert len({(process, session) for process, session, _ in found}) == 1
    for day, run in enumerate(runs, 1):
        assert world.fields(launch, run) == [
            "RunBegan",
            "TaskReported work running",
            "TaskReported work succeeded",
            "RunStaged",
            "RunReported succeeded",
        ]
        assert pq.read_table(world.out / f"day={day}").num_rows == day
    reports = world.fields(launch)
    # A run is published while the next one is under way, so only these have an order.
    assert [each for each in reports if each in ("RunBegan", "RunStaged")] == ["RunBegan", "RunStaged"] * 3
    assert reports[-1] == "AttemptEnded done"


@pytest.mark.parametrize("dies", some([False, True], True))
def test_an_attempt_ends_with_a_run_that_fails_and_the_next_has_its_own_session(world: World, dies: bool) -> None:
    pool = world.executor()
    good, bad, rest = (world.run(day=day) for day in (1, 2, 3))
    launch = world.launch(CODE, [good, bad, rest], bad=2, dies=dies)
    pool.launch(launch)
    assert world.host.ended()[:3] == (launch.attempt_id, bad.id, not dies)
    assert world.fields(launch, rest) == []
    if not dies:
        assert world.fields(launch, good)[-1] == "RunReported succeeded"
        assert world.fields(launch, bad)[-2:] == ["TaskReported work failed", "RunReported failed"]
        assert world.fields(launch)[-1] == "AttemptEnded done"
    after = world.launch(CODE, [rest], earlier=[launch.attempt_id] if dies else [])
    pool.launch(after)
    assert world.host.ended()[:3] == (after.attempt_id, rest.id, True)
    ended, later = found_by(world, bad.id), found_by(world, rest.id)
    assert ended[0] != later[0] and ended[1] != later[1]
    assert later[2] == fresh(after, rest)


@pytest.mark.long
@pytest.mark.parametrize("executor", some(["pool", "spark-submit"], "pool"))
def test_a_run_that_stops_the_session_leaves_the_others_to_the_next_attempt(world: World, executor: str) -> None:
    runs = [world.run(day=day) for day in (1, 2)]
    launch = world.launch(CODE.replace('"p", ', f'"p", executor="{executor}", '), runs, stops=True)
    world.executor().launch(launch)
    assert world.host.ended(240)[:3] == (launch.attempt_id, runs[0].id, True)
    assert world.fields(launch, runs[0])[-1] == "RunReported succeeded"
    # A run that has not begun cannot fail.
    assert world.fields(launch, runs[1]) == []
    assert world.fields(launch)[-1] == "AttemptEnded done"
