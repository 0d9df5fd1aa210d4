"""Errors of drivers on real Spark, classified: a failure of user code, or the loss of the
attempt's session.
"""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.functions import udf
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.types import LongType
from tests.integration.driver.conftest import SESSION_SECONDS
from tests.integration.driver.world import World, world
from tests.support.installation import until
from tests.support.spark_cluster import connect_process
from tests.unit.driver.test_driver_loss import raised
from tests.unit.driver.test_driver_submit import launch as any_launch

from retrofill.driver.application import ConnectApplication
from retrofill.driver.config import Config
from retrofill.driver.session import ConnectSessions, connect, connect_apart
from retrofill.spark import java
from retrofill.spark.loss import is_of_server, witness
from retrofill_core.contract.topics import Topic
from retrofill_core.settings import Settings

__all__ = ["world"]
pytestmark = pytest.mark.spark
OWN = """
import grpc
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")

@p.task(retries=1)
def calls(run):
    assert run.spark.range(3).count() == 3
    grpc.insecure_channel("127.0.0.1:9").unary_unary("/a/b")(b"", timeout=30)

@p.task(after=calls, trigger_rule="all_done", retries=1)
def says(run):
    run.spark.range(1).count()
    raise RuntimeError("503 SERVICE UNAVAILABLE postgresql://me:geheim@db/x")

@p.task(after=says, trigger_rule="all_done")
def stops(run):
    run.spark.stop()
    run.spark.range(1).count()
"""
IDLE = f"""
import time
from pyspark.sql import SparkSession
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")

@p.task
def work(run):
    run.spark.range(1).createOrReplaceTempView("mine")
    time.sleep({2 * SESSION_SECONDS})
    assert run.spark.table("mine").count() == 1
    if run.conf.get("lose"):
        address = f"{{run.conf['remote']}}/;user_id=retrofill;session_id={{run.spark.session_id}}"
        SparkSession.builder.remote(address).create().stop()
        try:
            run.spark.table("mine").count()
        except Exception:
            raise ValueError("my own words") from None
"""
CLASSIC = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", executor="spark-submit")

@p.task
def work(run):
    if run.conf["who"] == "user":
        run.spark.stop()
    else:
        run.spark.sparkContext._jsc.sc().stop()
    run.spark.range(5).count()
"""


@pytest.mark.long
def test_errors_of_the_users_own_that_sound_like_a_lost_session_fail_their_task(world: World) -> None:
    launch = world.launch(OWN)
    world.executor().launch(launch)
    assert world.host.ended()[:3] == (launch.attempt_id, launch.runs[0].id, True)
    assert world.fields(launch) == [
        "RunBegan",
        *(f"TaskReported calls {state}" for state in ("running", "retrying", "running", "failed")),
        *(f"TaskReported says {state}" for state in ("running", "retrying", "running", "failed")),
        *(f"TaskReported stops {state}" for state in ("running", "failed")),
        "RunReported failed",
        "AttemptEnded done",
    ]
    events = world.installation.events(Topic.RUN_REPORTS)
    reports = [e.body for e in events if e.body["attempt_id"] == launch.attempt_id]
    errors = {b["task"]: b["error"] for b in reports if b.get("state") == "failed" and "task" in b}
    assert errors["calls"]["type"] == "_InactiveRpcError"
    assert errors["says"]["message"] == "503 SERVICE UNAVAILABLE postgresql://me:***@db/x"
    assert "geheim" not in str(reports)
    assert "NO_ACTIVE_SESSION" in errors["stops"]["message"]


@pytest.mark.long
def test_a_job_that_an_orderly_stop_of_spark_cancels_is_lost_and_one_that_fails_is_not(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", spark_cores=2)
    with connect_process(settings, java.find(settings)) as (remote, server), ExitStack() as ending:
        sessions = ConnectSessions(Config(spark_remote=remote), ConnectApplication(), any_launch())
        sessions.open()
        session = sessions.use("t")
        # Or pyspark's default session is one without a server in the tests to come.
        session.release_session_on_close = False
        ending.callback(sessions.release)

        def job(work: Callable[[int], int]) -> BaseException:
            with pytest.raises(Exception) as caught:
                session.range(4).select(udf(work, LongType())("id")).collect()
            return caught.value

        began = str(tmp_path / "began")

        def holds(each: int) -> int:
            Path(began).touch()
            time.sleep(60)  # not waited for: Spark is stopped
            return each

        error = job(lambda each: each // 0)
        assert "ZeroDivisionError" in str(error)
        assert sessions.lost(error) is None

        def end_it() -> None:
            until(Path(began).exists, "it runs")
            server.terminate()

        threading.Thread(target=end_it).start()
        loss = sessions.lost(job(holds))
        assert loss is not None and is_of_server(loss)
    assert SparkSession.getActiveSession() is None


@pytest.fixture
def own(world: World) -> Iterator[Callable[..., ConnectSessions]]:
    """Makes an attempt's sessions, with the pipeline's ``spark_conf`` and settings of a driver."""
    with ExitStack() as ending:

        def make(conf: dict[str, str] | None = None, **more: Any) -> ConnectSessions:
            config, launch = Config(spark_remote=world.settings.spark_remote, **more), any_launch()
            pipeline = replace(launch.pipeline, spark_conf=conf or {})
            made = ConnectSessions(
                config, ConnectApplication(), replace(launch, pipeline=pipeline, attempt_id=next(World.ids))
            )
            ending.callback(made.release)
            ending.callback(made.release_publisher)
            return made

        yield make


def test_a_session_that_user_code_made_useless_is_not_lost(own: Callable[..., ConnectSessions]) -> None:
    sessions = own()
    sessions.open()
    session = sessions.use("t")
    session.conf.set("spark.sql.adaptive.customCostEvaluatorClass", "nowhere.AtAll")
    error = raised(session.range(1).count)
    assert "nowhere.AtAll" in str(error)
    assert sessions.lost(error) is None


def test_a_session_that_cannot_be_opened_fails_with_sparks_own_words(
    own: Callable[..., ConnectSessions], tmp_path: Path
) -> None:
    jars = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with zipfile.ZipFile(tmp_path / folder / "x.jar", "w") as jar:
            jar.writestr("of", folder)
        jars.append(str(tmp_path / folder / "x.jar"))
    sessions = own(spark_jars=tuple(jars))
    error = raised(sessions.open)
    assert "x.jar" in str(error)
    assert sessions.lost(error) is None
    sessions.release()
    assert SparkSession.getActiveSession() is None


def test_an_error_of_a_publication_is_no_loss_when_the_run_has_ended(own: Callable[..., ConnectSessions]) -> None:
    sessions = own()
    sessions.open()
    sessions.use("t").range(1).count()
    publisher = sessions.publisher()
    sessions.release()
    assert sessions.lost(raised(lambda: publisher.table("nowhere").count())) is None
    assert sessions.lost(raised(lambda: publisher.sql("SELECT raise_error('no')").collect())) is None


def test_the_publishers_session_may_be_lost_when_user_code_stopped_its_own(
    world: World, own: Callable[..., ConnectSessions]
) -> None:
    sessions = own()
    sessions.open()
    session, publisher = sessions.use("t"), sessions.publisher()
    assert publisher.range(1).count() == 1
    session.stop()
    other = connect(world.settings.spark_remote, publisher.session_id, witness(), {}, lambda _: None)
    other.range(1).count()
    other.stop()
    assert sessions.lost(raised(session.range(1).count)) is None
    assert sessions.lost(raised(publisher.range(1).count)) is not None


def test_sessions_that_spark_knows_are_kept_alive_used_or_not(
    world: World, own: Callable[..., ConnectSessions]
) -> None:
    """One with settings exists before a task first uses it, and the publisher's between two publications."""
    made = own({"spark.sql.shuffle.partitions": "3"})
    made.open()
    publisher = made.publisher()
    control = connect_apart(world.settings.spark_remote, {})
    with ExitStack() as ending:
        ending.callback(control.stop)
        assert {each.conf.get("spark.sql.ansi.enabled") for each in (publisher, control)} == {"true"}
        time.sleep(2 * SESSION_SECONDS)
        with pytest.raises(Exception, match="SESSION_CLOSED"):
            control.range(1).count()
    for session in (made.use("t"), publisher):
        assert session.conf.get("spark.sql.shuffle.partitions") == "3"
        assert session.range(3).count() == 3


@pytest.mark.long
def test_an_idle_session_is_kept_alive_and_one_that_spark_closed_loses_the_attempt(world: World) -> None:
    pool = world.executor()
    launch = world.launch(IDLE)
    pool.launch(launch)
    assert world.host.ended()[:3] == (launch.attempt_id, launch.runs[0].id, True)
    assert world.fields(launch)[-2:] == ["RunReported succeeded", "AttemptEnded done"]
    lost = world.launch(IDLE, lose=True, remote=world.settings.spark_remote)
    pool.launch(lost)
    attempt_id, begun, reported, reason = world.host.ended()
    assert (attempt_id, begun, reported) == (lost.attempt_id, lost.runs[0].id, False)
    assert reason.startswith("Spark lost the session: ") and "[INVALID_HANDLE.SESSION_CLOSED]" in reason
    assert world.fields(lost) == ["RunBegan", "TaskReported work running"]


@pytest.mark.long
def test_a_classic_context_that_spark_stopped_is_lost_and_one_that_the_user_stopped_is_not(world: World) -> None:
    executor = world.executor()
    for who, failed in (("user", True), ("spark", False)):
        launch = world.launch(CLASSIC, who=who)
        executor.launch(launch)
        attempt_id, begun, reported, reason = world.host.ended(240)
        assert (attempt_id, begun, reported) == (launch.attempt_id, launch.runs[0].id, failed)
        assert ("RunReported failed" in world.fields(launch)) == failed
        assert failed or reason.startswith("Spark lost the session: ")
