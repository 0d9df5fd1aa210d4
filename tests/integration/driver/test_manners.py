"""User code with bad manners in real drivers: whatever it does ends as a report, and nothing leaks into other attempts."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest
from tests.integration.driver.world import World, world
from tests.support.installation import ROOT, until
from tests.support.manners import ENDS

from retrofill.states import PROCESS_ENDED

__all__ = ["world"]
pytestmark = pytest.mark.spark
CODE = f"""
import sys
sys.path.append({str(ROOT)!r})
from retrofill import Pipeline
from tests.support.manners import DO, left

p = Pipeline("p", schedule="@daily")

@p.task
def work(run):
    kind, _, method = run.conf["do"].partition("leaves ")
    left(method, run.conf["out"]) if method else DO[kind]()
"""


@pytest.mark.long
def test_whatever_a_task_does_ends_as_its_report_and_the_driver_serves_the_next_attempt(world: World) -> None:
    pool = world.executor()
    for what, error in ENDS.items():
        launch = world.launch(CODE, do=what)
        pool.launch(launch)
        assert world.host.ended(60)[2:] == (True, "the driver was not allowed to begin"), what
        *_, reported, ended = world.bodies(launch)
        assert ended["type"] == "AttemptEnded", what
        assert reported["state"] == ("failed" if error else "succeeded"), (what, reported)
        if error:
            assert (reported["error"]["type"], error[1] in reported["error"]["message"]) == (error[0], True), what


@pytest.mark.long
def test_a_task_that_ends_a_process_of_spark_submit_fails_with_that_as_its_error(world: World) -> None:
    launch = world.launch(CODE.replace('"@daily"', '"@daily", executor="spark-submit"'), do="_exit 3")
    world.executor().launch(launch)
    begun, over = world.host.over.get(timeout=90)
    assert (begun, over.task, over.error.type) == (launch.runs[0].id, "work", PROCESS_ENDED)
    assert "exit status 3" in over.error.message


@pytest.mark.long
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_pool_of_processes_that_a_task_leaves_ends_with_its_attempt(world: World, context: str) -> None:
    pool = world.executor()
    launch = world.launch(CODE, do=f"leaves {context}")
    pool.launch(launch)
    assert world.host.ended(60)[2], world.log(launch)
    pids = json.loads((world.out / f"left-{context}").read_text())
    assert len(pids) > 2
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "they have ended")


LEAKS = """
import json, logging, os, pathlib, random, signal, sys, time, warnings
import numpy
import helper
from pyspark.sql import SparkSession
from retrofill import Pipeline

spark = SparkSession.builder.getOrCreate()
p = Pipeline("p", schedule="@daily", batch_size=3)

@p.task
def work(run):
    own = SparkSession.builder.getOrCreate()
    state = {
        "helper": helper.NAME,
        "session": own.session_id == spark.session_id == run.spark.session_id,
        "views": [row.viewName for row in own.sql("SHOW VIEWS").collect() if row.isTemporary],
        "conf": own.conf.get("my.own", None),
        "schema": own.catalog.currentDatabase(),
        "function": own.catalog.functionExists("plus"),
        "tags": sorted(own.getTags()),
    }
    process = {
        "folder": os.getcwd(), "variable": os.environ.get("MINE"), "zone": time.tzname[0], "filters": len(warnings.filters),
        "handlers": len(logging.getLogger().handlers), "path": "mine" in sys.path, "modules": "leaked" in sys.modules,
    }
    random_ = [random.random(), float(numpy.random.random())]
    (pathlib.Path(run.conf["out"]) / f"state-{run.id}").write_text(json.dumps([state, process, random_]))
    own.range(1).createOrReplaceTempView("day_one")
    own.conf.set("my.own", "set")
    own.sql("CREATE DATABASE IF NOT EXISTS leaks")
    own.sql("USE leaks")
    own.udf.register("plus", lambda x: x + 1, "long")
    own.addTag("mine")
    os.chdir("/")
    os.environ.update(MINE="set", TZ="Pacific/Kiritimati")
    time.tzset()
    warnings.simplefilter("error")
    logging.getLogger().addHandler(logging.NullHandler())
    sys.path.append("mine")
    sys.modules["leaked"] = sys
"""

APPLIED = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", batch_size=3)

@p.task
def work(run):
    raise AssertionError("it was replaced")
"""


def test_nothing_of_one_attempt_or_run_meets_another(world: World) -> None:
    """Each pipeline has a helper of the same name, gets its session from pyspark, at the top of its module too."""
    pool = world.executor()
    found: list[tuple[Any, Any, Any]] = []
    for name in ("one", "two"):
        folder = world.out / name
        folder.mkdir()
        (folder / "helper.py").write_text(f"NAME = {name!r}")
        runs = [world.run(day=day) for day in (1, 2)]
        # Applied by a machine without a Spark.
        launch = world.launch(APPLIED, runs, folder=folder)
        (folder / "pipeline.py").write_text(LEAKS)
        pool.launch(launch)
        assert world.host.ended()[2], world.log(launch)
        tag = f"retrofill-attempt-{launch.attempt_id}"
        for run in runs:
            state, process, numbers = json.loads((world.out / f"state-{run.id}").read_text())
            assert state == {
                "helper": name,
                "session": True,
                "views": [],
                "conf": None,
                "schema": "default",
                "function": False,
                "tags": [tag, f"{tag}-run-{run.id}-work"],
            }
            found.append((state, process, numbers))
    # The second run of a batch is in the same process.
    assert found[0][1] == found[2][1]
    assert len({json.dumps(numbers) for *_, numbers in found}) == 4
