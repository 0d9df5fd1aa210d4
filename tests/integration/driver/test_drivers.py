"""Real drivers on a real Spark Connect server and Kafka, run by the pool and spark-submit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.driver.world import CODE, World, world
from tests.support.installation import until

__all__ = ["world"]
pytestmark = pytest.mark.spark
ENDING_SECONDS = 6.0  # the promise is 2 s; the margin is for a busy machine
SUBMITTED = """
from retrofill import Pipeline
s = Pipeline("s", schedule="@daily", executor="spark-submit")
@s.task
def count(run):
    print("printed by the task")
    (__import__("pathlib").Path(run.conf["out"]) / "counted").write_text(str(run.spark.range(5).count()))
s.submit("script", "job.py", args=["{conf.out}", "{interval.start:%Y-%m-%d}", "{conf.tests}"], after="count")
"""
SCRIPT = """
import pathlib, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
sys.path.insert(0, sys.argv[3])
import psutil
from tests.support.listening import beyond_loopback, listening
jvm = [psutil.Process().parent()]
assert any("SparkSubmit" in " ".join(p.cmdline()) for p in jvm), jvm
told = f"{sys.argv[2]} {spark.range(6).count()} {len(listening(jvm)) > 1} {beyond_loopback(jvm)} {spark.sparkContext.uiWebUrl}"
pathlib.Path(sys.argv[1], "script").write_text(told)
print("printed by the script")
print("its error", file=sys.stderr)
"""


def within(seconds: float, condition: Callable[[], bool], what: str) -> None:
    until(condition, what, seconds=seconds)


@pytest.mark.long
def test_the_application_of_a_connect_server_is_reported(world: World) -> None:
    launch = world.launch()
    world.executor().launch(launch)
    assert world.host.ended()[:3] == (launch.attempt_id, launch.runs[0].id, True)
    assert world.application(launch)["id"].startswith("local-")


@pytest.mark.long
def test_the_end_of_a_run_ends_its_work_on_spark_and_its_process(world: World) -> None:
    pool = world.executor()
    launch = world.begin_slow(pool)
    driver = world.driver()
    # Reports are published behind the work, and the end of the driver would take them along.
    until(lambda: "TaskReported work running" in world.fields(launch), "its reports are published")
    before = time.monotonic()
    pool.end(launch.key)
    assert world.host.ended()[:3] == (launch.attempt_id, launch.runs[0].id, False)
    assert time.monotonic() - before < ENDING_SECONDS
    assert not driver.is_running()
    within(ENDING_SECONDS, lambda: not world.beats(), "Spark's side has ended")
    assert world.fields(launch) == ["RunBegan", "TaskReported work running"]


def test_a_killed_driver_is_told_at_once_and_its_next_attempt_ends_its_work(world: World) -> None:
    pool = world.executor()
    launch = world.begin_slow(pool)
    world.driver().kill()
    assert world.host.ended(ENDING_SECONDS) == (
        launch.attempt_id,
        launch.runs[0].id,
        False,
        "the driver process was ended by signal 9",
    )
    assert world.beats(), "a kill leaves the driver no moment to end its work on Spark"
    second = world.again(launch)
    pool.launch(second)
    assert world.host.ended()[:3] == (second.attempt_id, launch.runs[0].id, True)
    assert world.by_task(second)[1] == 2
    within(ENDING_SECONDS, lambda: not world.beats(), "the first attempt's work has ended")


@pytest.mark.long
def test_installations_that_share_a_server_do_not_end_each_others_work(world: World) -> None:
    """Each numbers its attempts from 1."""
    mine = world.begin_slow(world.executor())
    theirs = replace(world.again(mine), installation="theirs")
    world.executor().launch(theirs)
    assert world.host.ended()[:3] == (theirs.attempt_id, mine.runs[0].id, True)
    assert world.by_task(theirs)[1] == 2
    assert world.beats()


def test_a_new_attempt_shuts_the_older_one_out_that_still_lives(world: World) -> None:
    launch = world.begin_slow(world.executor())
    driver = world.driver()
    driver.suspend()
    second = world.again(launch)
    world.executor().launch(second)
    assert world.host.ended()[:3] == (second.attempt_id, launch.runs[0].id, True)
    within(ENDING_SECONDS, lambda: not world.beats(), "the first attempt's work has ended")
    driver.resume()
    # It wakes up after its lease has ended or finds its session closed. Either way it must not
    # succeed.
    assert world.host.ended().attempt_id == launch.attempt_id
    assert "RunReported succeeded" not in world.fields(launch)


HOST = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from tests.integration.driver.world import Recorder, World
from run_starter.executors.build import build_executors
from retrofill_core.settings import Settings
from pathlib import Path
world = World.__new__(World)
world.out = Path(sys.argv[2])
world.begin_slow(build_executors(Settings(), Recorder(Settings())))
print("begun", flush=True)
threading.Event().wait()
"""


@pytest.mark.long
def test_drivers_end_with_their_host_even_by_kill_9(world: World) -> None:
    root = str(Path(__file__).parents[3])
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, root, str(world.out)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert host.stdout is not None
    assert host.stdout.readline() == b"begun\n"
    driver = world.driver()
    os.kill(host.pid, signal.SIGKILL)
    host.wait()
    within(ENDING_SECONDS, lambda: not driver.is_running(), "the driver has ended")
    within(ENDING_SECONDS, lambda: not world.beats(), "Spark's side has ended")


def test_a_whole_run_by_spark_submit_with_a_script(world: World) -> None:
    (world.out / "job.py").write_text(SCRIPT)
    launch = world.launch(SUBMITTED, tests=str(Path(__file__).parents[3]))
    executor = world.executor(script_allow=[str(world.out / "job.py")])
    executor.launch(launch)
    assert executor.hosted() == {launch.attempt_id}
    assert world.host.ended(240)[:3] == (launch.attempt_id, launch.runs[0].id, True)
    assert (world.out / "counted").read_text() == "5"
    fields = (world.out / "script").read_text()
    assert fields.startswith("2013-01-01 6 True [] http://"), "all that it opened is on loopback"
    assert world.fields(launch)[-2:] == ["RunReported succeeded", "AttemptEnded done"]
    log = world.log(launch, complete="its error")
    for line in ("printed by the task", "printed by the script", "its error", "SparkContext: Running Spark version"):
        assert line in log
    assert world.application(launch)["id"].startswith("local-")


@pytest.mark.long
def test_a_spark_submit_is_ended_with_all_its_processes(world: World) -> None:
    executor = world.executor()
    launch = world.launch(CODE.replace('"p", ', '"p", executor="spark-submit", '), slow=True)
    executor.launch(launch)
    until((world.out / "beat").exists, "the work on Spark has begun", seconds=120)
    driver = world.driver()
    # Its parent, and the JVM of spark-submit.
    family = [driver, *driver.parents()[:2]]
    before = time.monotonic()
    executor.end(launch.attempt_id)
    assert world.host.ended()[:3] == (launch.attempt_id, launch.runs[0].id, False)
    assert time.monotonic() - before < ENDING_SECONDS
    within(ENDING_SECONDS, lambda: not any(each.is_running() for each in family), "driver and JVM have ended")
    within(ENDING_SECONDS, lambda: not world.beats(), "its Python workers have ended")
