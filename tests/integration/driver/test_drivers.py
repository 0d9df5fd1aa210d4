"""Real drivers on a real Spark Connect server and Kafka, run by the pool and spark-submit."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.installation import Installation, until

from retrofill.contract.topics import Topic
from retrofill.user_code.loading import load_pipelines
from run_starter.executors import Executor, LaunchRequest
from run_starter.executors.build import build_executor

pytestmark = pytest.mark.spark
ENDING_SECONDS = 6.0  # the promise is 2 s; the margin is for a busy machine
CODE = """
import os, time
from pathlib import Path
from pyspark.sql.functions import udf
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", timezone="America/New_York", spark_conf={"spark.sql.shuffle.partitions": 3})

@p.task
def work(run):
    out = Path(run.conf["out"])
    print("printed by the user")
    if run.conf.get("slow"):
        @udf("int")
        def tick(_):
            while True:
                (out / "beat").write_text(str(time.monotonic()))
                time.sleep(0.05)
        (out / "pid").write_text(str(os.getpid()))
        run.spark.range(1).select(tick("id")).collect()
    @udf("long")
    def twice(x): return 2 * x
    rows = run.spark.range(4).select(twice("id").alias("n")).collect()
    told = [
        os.getpid(), run.attempt, sum(row.n for row in rows), run.spark.conf.get("spark.sql.shuffle.partitions"),
        run.interval.start.isoformat(), run.logical_date == run.interval.start, run.backfill_id,
    ]
    (out / f"told-{run.id}").write_text(repr(told))
"""
WAITS = """
import pathlib, time
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
@p.task
def work(run):
    pathlib.Path(run.conf["out"], "began").touch()
    time.sleep(60)
"""
SUBMITTED = """
from retrofill import Pipeline
s = Pipeline("s", schedule="@daily", executor="spark-submit")
@s.task
def count(run):
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
"""


class Recorder:
    """A host that allows everything unless configured otherwise, and records what it receives."""

    def __init__(self) -> None:
        self.allowed = True
        self.accepts = True
        # What it says is left of a lease.
        self.lease_seconds = 15.0
        self._ended: queue.SimpleQueue[tuple[int, int, bool, str]] = queue.SimpleQueue()

    def may_begin(self, launch: LaunchRequest) -> float | None:
        return self.lease_seconds if self.allowed else None

    def may_publish(self, launch: LaunchRequest) -> bool:
        return self.accepts

    def driver_ended(self, launch: LaunchRequest, *, reported: bool, reason: str, exited: bool = True) -> None:
        self._ended.put((launch.run_id, launch.attempt, reported, reason))

    def ended(self, seconds: float = 90) -> tuple[int, int, bool, str]:
        return self._ended.get(timeout=seconds)


class World:
    """Executors in an installation with Spark, and the reports that their drivers published."""

    ids = itertools.count(int(time.time()) * 1000)

    def __init__(self, installation: Installation, remote: str, out: Path) -> None:
        self.installation = installation
        self.settings = installation.settings.model_copy(update={"spark_remote": remote, "driver_slots": 1})
        self.environment = installation.environment() | {
            "RETROFILL_SPARK_REMOTE": remote,
            "RETROFILL_DRIVER_SLOTS": "1",
        }
        self.out = out
        self.host = Recorder()
        self.executors: list[Executor] = []

    def executor(self, **more: Any) -> Executor:
        self.executors.append(build_executor(self.settings.model_copy(update=more), self.host))
        return self.executors[-1]

    def launch(self, code: str = CODE, run_id: int | None = None, attempt: int = 1, **conf: Any) -> LaunchRequest:
        file = self.out / "pipeline.py"
        file.write_text(code)
        ((pipeline, location),) = load_pipelines(file)
        return LaunchRequest(
            backfill_id="b",
            run_id=run_id or next(self.ids),
            attempt=attempt,
            pipeline=pipeline.to_definition(location),
            interval_start=datetime(2013, 1, 1, 5, tzinfo=UTC),
            interval_end=datetime(2013, 1, 2, 5, tzinfo=UTC),
            conf={"out": str(self.out), **conf},
        )

    def fields(self, run_id: int, attempt: int = 1) -> list[str]:
        """The reports of an attempt, without heartbeats: a short one sends none."""
        bodies = [e.body for e in self.installation.events(Topic.RUN_REPORTS)]
        mine = [b for b in bodies if (b["run_id"], b["attempt"]) == (run_id, attempt)]
        fields = [" ".join(filter(None, (b["type"], b.get("task"), b.get("state")))) for b in mine]
        return [each for each in fields if each != "RunHeartbeat"]

    def by_task(self, run_id: int) -> list[Any]:
        found: list[Any] = eval((self.out / f"told-{run_id}").read_text())
        return found

    def begin_slow(self, executor: Executor, **more: Any) -> LaunchRequest:
        """Start a run whose UDF updates a file forever. Returns once the file exists."""
        launch = self.launch(slow=True, **more)
        for name in ("beat", "pid"):
            (self.out / name).unlink(missing_ok=True)
        executor.launch(launch)
        until((self.out / "beat").exists, "the work on Spark has begun", seconds=120)
        return launch

    def driver(self) -> psutil.Process:
        return psutil.Process(int((self.out / "pid").read_text()))

    def beats(self) -> bool:
        """Whether Spark is still executing the slow run."""
        return time.time() - (self.out / "beat").stat().st_mtime < 1.0


@pytest.fixture
def world(
    installation: Installation, spark_remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    made = World(installation, spark_remote, tmp_path)
    # Drivers read their settings from the environment, as in production.
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    for executor in made.executors:
        executor.close()


def within(seconds: float, condition: Callable[[], bool], what: str) -> None:
    until(condition, what, seconds=seconds)


def test_runs_one_after_the_other_in_one_warm_process(world: World) -> None:
    pool = world.executor()
    first, second, third = world.launch(), world.launch(), world.launch(attempt=4)
    for launch in (first, second, third):
        pool.launch(launch)
        assert world.host.ended()[:3] == (launch.run_id, launch.attempt, True)
        pid, attempt, total, partitions, start, same, backfill = world.by_task(launch.run_id)
        assert (attempt, total, partitions) == (launch.attempt, 12, "3")
        assert (start, same, backfill) == ("2013-01-01T00:00:00-05:00", True, "b")
        assert world.fields(launch.run_id, launch.attempt) == [
            "TaskReported work running",
            "TaskReported work succeeded",
            "RunReported succeeded",
        ]
        assert pid == world.by_task(first.run_id)[0]
    assert "printed by the user" in (world.settings.home / "logs" / "drivers.log").read_text()


def test_who_may_not_begin_runs_no_user_code(world: World) -> None:
    world.host.allowed = False
    launch = world.launch()
    world.executor().launch(launch)
    assert world.host.ended()[2] is False
    assert world.fields(launch.run_id) == []
    assert not (world.out / f"told-{launch.run_id}").exists()


def test_the_end_of_a_run_ends_its_work_on_spark_and_its_process(world: World) -> None:
    pool = world.executor()
    launch = world.begin_slow(pool)
    driver = world.driver()
    before = time.monotonic()
    pool.end(launch.key)
    assert world.host.ended()[2] is False
    assert time.monotonic() - before < ENDING_SECONDS
    assert not driver.is_running()
    within(ENDING_SECONDS, lambda: not world.beats(), "Spark's side has ended")
    assert world.fields(launch.run_id) == ["TaskReported work running"]


def test_a_killed_driver_is_told_at_once_and_its_next_attempt_ends_its_work(world: World) -> None:
    pool = world.executor()
    launch = world.begin_slow(pool)
    world.driver().kill()
    assert world.host.ended(ENDING_SECONDS) == (
        launch.run_id,
        1,
        False,
        "the driver process was ended by signal 9",
    )
    assert world.beats(), "a kill leaves the driver no moment to end its work on Spark"
    pool.launch(world.launch(run_id=launch.run_id, attempt=2))
    assert world.host.ended()[:3] == (launch.run_id, 2, True)
    assert world.by_task(launch.run_id)[1] == 2
    within(ENDING_SECONDS, lambda: not world.beats(), "the first attempt's work has ended")


def test_a_new_attempt_shuts_the_older_one_out_that_still_lives(world: World) -> None:
    launch = world.begin_slow(world.executor())
    driver = world.driver()
    driver.suspend()
    world.executor().launch(world.launch(run_id=launch.run_id, attempt=2))
    assert world.host.ended()[:3] == (launch.run_id, 2, True)
    within(ENDING_SECONDS, lambda: not world.beats(), "the first attempt's work has ended")
    driver.resume()
    # It wakes up after its lease has ended or finds its session closed. Either way it must not
    # succeed.
    world.host.ended()
    assert "RunReported succeeded" not in world.fields(launch.run_id)


HOST = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from tests.integration.driver.test_drivers import Recorder, World
from run_starter.executors.build import build_executor
from retrofill.settings import Settings
from pathlib import Path
world = World.__new__(World)
world.out = Path(sys.argv[2])
world.begin_slow(build_executor(Settings(), Recorder()))
print("begun", flush=True)
threading.Event().wait()
"""


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


def test_a_driver_whose_broker_is_silent_ends_with_its_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROFILL_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    world.host.lease_seconds = 5.0
    launch = world.launch(WAITS)
    world.executor().launch(launch)
    run_id, _, reported, reason = world.host.ended()
    assert (run_id, reported) == (launch.run_id, False)
    assert "its lease ended" in reason
    assert (world.out / "began").exists(), "what the host says is left of the lease is enough to begin"


def test_a_whole_run_by_spark_submit_with_a_script(world: World) -> None:
    (world.out / "job.py").write_text(SCRIPT)
    launch = world.launch(SUBMITTED, tests=str(Path(__file__).parents[3]))
    executor = world.executor(script_allow=[str(world.out / "job.py")])
    executor.launch(launch)
    assert executor.hosted() == {(launch.run_id, 1, 0)}
    assert world.host.ended(240)[:3] == (launch.run_id, 1, True)
    assert (world.out / "counted").read_text() == "5"
    fields = (world.out / "script").read_text()
    assert fields.startswith("2013-01-01 6 True [] http://"), "all that it opened is on loopback"
    assert world.fields(launch.run_id)[-1] == "RunReported succeeded"


def test_a_spark_submit_is_ended_with_all_its_processes(world: World) -> None:
    executor = world.executor()
    launch = world.launch(CODE.replace('"p", ', '"p", executor="spark-submit", '), slow=True)
    executor.launch(launch)
    until((world.out / "beat").exists, "the work on Spark has begun", seconds=120)
    driver = world.driver()
    family = [driver, *driver.parents()[:1]]
    before = time.monotonic()
    executor.end((launch.run_id, 1, 0))
    assert world.host.ended()[2] is False
    assert time.monotonic() - before < ENDING_SECONDS
    within(ENDING_SECONDS, lambda: not any(each.is_running() for each in family), "driver and JVM have ended")
    within(ENDING_SECONDS, lambda: not world.beats(), "its Python workers have ended")
