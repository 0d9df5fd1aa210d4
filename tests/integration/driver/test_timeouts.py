"""Tasks that exceed their timeout, in real drivers on a real Spark Connect server."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from tests.integration.driver.world import World, world
from tests.support.installation import until

from retrofill.states import TASK_TIMED_OUT

__all__ = ["world"]
pytestmark = pytest.mark.spark
CODE = """
import pathlib, subprocess, sys, time
from pyspark.sql.functions import udf
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", retries=1, retry_delay=0.1)

@p.task(timeout=8)
def work(run):
    out, how = pathlib.Path(run.conf["out"]), run.conf["how"]
    if (out / "once").exists():
        (out / "again").write_text(str(run.spark.range(3).count()))
        return
    (out / "once").touch()
    if how == "python":
        time.sleep(3600)
    if how == "child":
        (out / "child").write_text("")
        code = "import os, pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        code += "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(3600)"
        subprocess.run([sys.executable, "-c", code, str(out / "child")])
    @udf("int")
    def tick(_):
        while True:
            (out / "beat").write_text(str(time.monotonic()))
            time.sleep(0.05)
    run.spark.range(1).select(tick("id")).collect()
"""
SCRIPTED = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
p.submit("script", "job.py", args=["{conf.out}"], timeout=20)
"""
SCRIPT = """
import pathlib, subprocess, sys
code = "import os, pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
code += "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(3600)"
subprocess.run([sys.executable, "-c", code, sys.argv[1] + "/child"])
"""


def message(run_id: int, task: str, limit: str) -> str:
    return f"task {task!r} of run {run_id} timed out after {limit}: raise its timeout, or find out what takes so long"


def ended(path: Path) -> bool:
    """Whether the process has ended whose id is in this file."""
    return not psutil.pid_exists(int(path.read_text()))


@pytest.mark.long
def test_a_spark_job_that_hangs_is_interrupted_and_tried_again_in_the_same_driver(world: World) -> None:
    # Time enough for Spark's first Python worker to be at it.
    launch = world.launch(CODE.replace("timeout=8", "timeout=30"), how="spark")
    world.executor().launch(launch)
    assert world.host.ended()[:3] == (launch.attempt_id, launch.runs[0].id, True)
    assert world.fields(launch) == [
        "RunBegan",
        "TaskReported work running",
        "TaskReported work retrying",
        "TaskReported work running",
        "TaskReported work succeeded",
        "RunReported succeeded",
        "AttemptEnded done",
    ]
    assert (world.out / "again").read_text() == "3"
    until(lambda: not world.beats(), "its work on Spark has ended")


@pytest.mark.long
@pytest.mark.parametrize("how", ["python", "child"])
def test_code_that_hangs_ends_its_driver_and_the_next_attempt_has_one_try_less(world: World, how: str) -> None:
    pool = world.executor()
    launch = world.launch(CODE, how=how)
    (run,) = launch.runs
    pool.launch(launch)
    begun, over = world.host.over.get(timeout=90)
    assert (begun, over.task, over.try_number) == (run.id, "work", 1)
    assert (over.error.type, over.error.message) == (TASK_TIMED_OUT, message(run.id, "work", "8s"))
    # The host reports the rest.
    assert world.fields(launch) == ["RunBegan", "TaskReported work running"]
    if how == "child":
        until(lambda: ended(world.out / "child"), "what it started has ended")
    (world.out / "once").unlink()
    second = world.again(launch, tries={"work": 1}, code=CODE, how=how)
    pool.launch(second)
    begun, over = world.host.over.get(timeout=90)
    assert (begun, over.try_number) == (run.id, 2)


@pytest.mark.long
def test_a_script_that_hangs_ends_with_what_it_started(world: World) -> None:
    (world.out / "job.py").write_text(SCRIPT)
    launch = world.launch(SCRIPTED)
    world.executor(script_allow=[str(world.out / "job.py")]).launch(launch)
    assert world.host.ended()[:3] == (launch.attempt_id, launch.runs[0].id, True)
    assert world.fields(launch)[1:] == [
        "TaskReported script running",
        "TaskReported script failed",
        "RunReported failed",
        "AttemptEnded done",
    ]
    until(lambda: ended(world.out / "child"), "its child has ended")
