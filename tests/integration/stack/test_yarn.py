"""Drivers and scripts on a real YARN: slow starts are no losses, no application outlives its attempt, and no two of one
run are live at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from tests.support.installation import Installation, until
from tests.support.loading import definition_of, load_pipelines
from tests.support.replica import Replica
from tests.support.yarn_cluster import Yarn

from retrofill.spark.clusters import tag_of
from retrofill_core.contract.backfills import BackfillCancelRequested
from retrofill_core.contract.topics import Topic

pytestmark = [pytest.mark.spark, pytest.mark.long]
SECONDS = 240.0
# Shorter than the start of any driver there.
LEASE_SECONDS = 5
LIVE = {"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"}
# Each execution has a file with the moments at which it was alive. The first ones never end by themselves.
BEATS = """
import time
from pathlib import Path

def beat(out, endless):
    n = len(list(out.glob("beats-*")))
    with (out / f"beats-{n}").open("w", buffering=1) as beats:
        while True:
            beats.write(f"{time.time()}\\n")
            if n >= endless:
                break
            time.sleep(0.05)
"""
CODE = f"""
from retrofill import Pipeline
{BEATS}
def work(run):
    out = Path(run.conf["out"])
    beat(out, run.conf["endless"])
    (out / "sum").write_text(str(run.spark.range(100).selectExpr("sum(id)").first()[0]))

s = Pipeline("s", schedule="@daily", start="2000-01-01", executor="spark-submit")
s.task(work)
large = Pipeline("large", schedule="@daily", start="2000-01-01", executor="spark-submit",
                 spark_conf={{"spark.driver.memory": "5g"}})
large.task(work)
t = Pipeline("t", schedule="@daily", start="2000-01-01", executor="spark-submit")
t.submit("script", "job.py", args=["{{conf.out}}", "{{conf.endless}}"], deploy_mode="cluster")
"""
SCRIPT = f"""
import sys
from pyspark.sql import SparkSession
{BEATS}
out = Path(sys.argv[1])
spark = SparkSession.builder.getOrCreate()
beat(out, int(sys.argv[2]))
(out / "sum").write_text(str(spark.range(100).selectExpr("sum(id)").first()[0]))
"""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A cluster of one machine."""
    cluster = Yarn(tmp_path_factory.mktemp("yarn"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class World:
    """An installation whose run-starters submit to the cluster."""

    def __init__(self, installation: Installation, yarn: Yarn, folder: Path) -> None:
        self.installation, self.yarn, self.out = installation, yarn, folder / "out"
        self.out.mkdir()
        self.settings = {
            **yarn.environment,
            "RETROFILL_SPARK_SUBMIT_MASTER": "yarn",
            "RETROFILL_SPARK_SUBMIT_CONF": json.dumps(dict(yarn.spark_conf)),
            # A name, because the address may be one of loopback.
            "RETROFILL_DRIVER_HOST": socket.gethostname(),
            "RETROFILL_LEASE_SECONDS": str(LEASE_SECONDS),
            "RETROFILL_SCRIPT_ALLOW": json.dumps([str(folder / "job.py")]),
        }
        (folder / "pipeline.py").write_text(CODE)
        (folder / "job.py").write_text(SCRIPT)
        with psycopg.connect(installation.settings.dsn_of("owner")) as conn:
            # All test installations are copies of one, and would share the names of applications.
            conn.execute("UPDATE retrofill.installation SET id = %s", [str(uuid.uuid4())])
        installation.start("backfill-planner", self.settings)
        for pipeline, location in load_pipelines(folder / "pipeline.py"):
            installation.apply(definition_of(pipeline, location))

    def starter(self, mode: str = "cluster", **more: str) -> Replica:
        """Start a run-starter."""
        return self.installation.start(
            "run-starter", {**self.settings, **more}, RETROFILL_SPARK_SUBMIT_DEPLOY_MODE=mode
        )

    def request(self, pipeline: str, endless: int = 0, day: int = 1, out: Path | None = None) -> str:
        """Request one day, of which so many executions never end by themselves."""
        date = f"2020-01-{day:02}"
        conf = {"out": str(out or self.out), "endless": endless}
        return self.installation.request(pipeline, date, date, conf=conf)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, what, self.said, SECONDS)

    def runs(self, n: int, out: Path | None = None) -> None:
        """Wait until user code of the n-th execution runs."""
        self.wait(((out or self.out) / f"beats-{n}").exists, f"execution {n} runs")

    def succeeds(self, id: str) -> None:
        assert self.installation.wait_state(id, "succeeded", "failed", seconds=SECONDS) == "succeeded", self.said()
        assert (self.out / "sum").read_text() == "4950"

    def cancel(self, id: str) -> None:
        self.installation.publish(Topic.BACKFILL_REQUESTS, id, BackfillCancelRequested())

    def apps(self, id: str) -> list[dict[str, Any]]:
        """The applications of the backfill's attempts, the oldest first."""
        installation = self.installation.value("SELECT id FROM installation")
        attempts = self.installation.query("SELECT id FROM attempt WHERE backfill_id = %s", id)
        tags = {tag_of(installation, row["id"]) for row in attempts}
        return [app for app in self.yarn.apps() if tags & set(app["applicationTags"].split(","))]

    def ended(self, id: str) -> list[dict[str, Any]]:
        """Wait until none of the backfill's applications is live. Returns them."""
        self.wait(lambda: not any(app["state"] in LIVE for app in self.apps(id)), "its applications have ended")
        return self.apps(id)

    def one_after_the_other(self, id: str) -> None:
        """Check that the second application and its user code began after the end of the first."""
        first, second = self.ended(id)
        assert first["finishedTime"] <= second["startedTime"]
        assert second["finalStatus"] == "SUCCEEDED"
        beats = [[float(line) for line in (self.out / f"beats-{n}").read_text().split()] for n in (0, 1)]
        assert beats[0][-1] < beats[1][0]

    def said(self) -> str:
        logs = "\n".join(replica.said()[-3000:] for replica in self.installation.replicas)
        drivers = self.installation.settings.home / "logs" / "drivers.log"
        return f"{logs}\n{drivers.read_text()[-3000:] if drivers.exists() else ''}\n{self.yarn.log()}"


@pytest.fixture
def world(installation: Installation, yarn: Yarn, tmp_path: Path) -> World:
    """A planner and the pipelines. Tests start the run-starters."""
    return World(installation, yarn, tmp_path)


def driver_of(starter: Replica) -> psutil.Process:
    """The process of the one attempt of a run-starter, whose parent is a driver, too."""
    family = psutil.Process(starter.process.pid).children(recursive=True)
    _, driver = [each for each in family if is_driver(each)]
    return driver


def is_driver(process: psutil.Process) -> bool:
    """Whether it is a driver itself, and not a JVM that has one."""
    try:
        words = process.cmdline()
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return False
    return bool(words) and words[-1].endswith("once.py") and "python" in words[0]


def test_a_driver_that_starts_slower_than_its_lease_is_not_lost(world: World) -> None:
    world.starter()
    id = world.request("s")
    world.succeeds(id)
    (row,) = world.installation.query(
        "SELECT extract(epoch FROM began_at - claimed_at) AS took, outcome FROM attempt WHERE backfill_id = %s", id
    )
    assert row["outcome"] == "done"
    assert row["took"] > LEASE_SECONDS
    (app,) = world.ended(id)
    assert app["name"] == "retrofill s 2020-01-01T00:00:00+00:00"


def test_a_driver_that_does_not_start_in_time_is_killed_and_counts_as_no_loss(world: World) -> None:
    # Enough for the submission.
    world.starter(RETROFILL_DRIVER_START_SECONDS="30")
    with world.yarn.starting_nothing():
        id = world.request("s")
        query = "SELECT outcome FROM attempt WHERE backfill_id = %s AND outcome IS NOT NULL ORDER BY id"
        world.wait(lambda: len(world.installation.query(query, id)) >= 2, "two attempts ended")
        assert {row["outcome"] for row in world.installation.query(query, id)} == {"released"}
        assert world.installation.value("SELECT lost_attempts FROM run WHERE backfill_id = %s", id) == 0
        world.cancel(id)
        apps = world.ended(id)
    assert apps
    assert {app["state"] for app in apps} == {"KILLED"}


def test_the_applications_of_a_cancelled_backfill_are_killed_whether_they_run_or_wait(world: World) -> None:
    world.starter()
    outs = [world.out / name for name in ("runs", "waits")]
    ids = []
    for n, out in enumerate(outs):
        out.mkdir()
        ids.append(id := world.request("large", endless=1, day=n + 1, out=out))
        world.wait(lambda id=id: bool(world.apps(id)), "it is submitted")  # type: ignore[misc]
        if n == 0:
            world.runs(0, out)
    # There is no memory for both.
    assert world.apps(ids[1])[0]["state"] in ("SUBMITTED", "ACCEPTED")
    for id in reversed(ids):
        world.cancel(id)
        assert world.installation.wait_state(id, "cancelled", "failed", seconds=SECONDS) == "cancelled"
        world.ended(id)
    assert world.apps(ids[1])[0]["state"] == "KILLED"
    assert not (outs[1] / "beats-0").exists()


@pytest.mark.parametrize("pipeline", ["s", "t"], ids=["a driver in the cluster", "a script in the cluster"])
def test_the_application_of_a_killed_run_starter_ends_before_the_next_attempt_begins(
    pipeline: str, world: World
) -> None:
    first = world.starter()
    id = world.request(pipeline, endless=1)
    world.runs(0)
    first.kill()
    world.starter()
    world.succeeds(id)
    world.one_after_the_other(id)


def test_a_script_in_the_cluster_ends_with_its_driver_and_before_the_next_one(world: World) -> None:
    starter = world.starter()
    id = world.request("t", endless=1)
    world.runs(0)
    driver_of(starter).kill()
    world.succeeds(id)
    world.one_after_the_other(id)
    assert world.apps(id)[0]["state"] == "KILLED"


def test_a_script_in_the_cluster_is_killed_if_its_backfill_is_cancelled_or_nobody_is_left(world: World) -> None:
    starter = world.starter()
    cancelled = world.request("t", endless=1)
    world.runs(0)
    world.cancel(cancelled)
    assert [app["state"] for app in world.ended(cancelled)] == ["KILLED"]
    (world.out / "left").mkdir()
    left = world.request("t", endless=1, day=2, out=world.out / "left")
    world.runs(0, world.out / "left")
    starter.kill()
    assert [app["state"] for app in world.ended(left)] == ["KILLED"]


def test_an_application_in_client_mode_has_ended_before_the_next_attempt_begins(world: World) -> None:
    starter = world.starter("client")
    id = world.request("s", endless=1)
    world.runs(0)
    driver_of(starter).kill()
    world.succeeds(id)
    world.one_after_the_other(id)


def test_while_the_cluster_does_not_answer_the_next_attempt_waits_and_says_so(world: World) -> None:
    first = world.starter()
    id = world.request("t", endless=1)
    world.runs(0)
    driver = driver_of(first)
    # As if their machine were lost: nothing is left that would kill the application.
    local = [first.process, *driver.parents()[:1], driver, *driver.children(recursive=True)]
    for each in local:
        each.send_signal(signal.SIGSTOP)
    with world.yarn.stopped():
        for each in local:
            each.kill()
        world.starter()
        world.wait(lambda: "earlier applications may still run: yarn" in shown(world, id), "it says why it waits")
    world.succeeds(id)
    world.one_after_the_other(id)


def shown(world: World, id: str) -> str:
    """What the command line says of the backfill."""
    command = [sys.executable, "-c", "from retrofill_tools.cli.main import run; run()", "backfill", "show", id]
    environment = {**os.environ, **world.installation.environment(), "COLUMNS": "200"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
