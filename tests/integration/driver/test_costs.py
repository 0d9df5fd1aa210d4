"""The cost of attempts, from the REST API of a real Spark Connect server's UI."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.driver.world import World, world
from tests.support.spark_cluster import HERE, connect_process

from retrofill.spark import java
from retrofill_core.contract.topics import Topic
from retrofill_core.settings import Settings
from retrofill_tools.stack.ports import held_port
from run_starter.executors import LaunchRequest

__all__ = ["world"]
pytestmark = pytest.mark.spark
CODE = """
from pathlib import Path
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", batch_size=2)

@p.task
def write(run):
    run.spark.range(1000 * run.conf["thousands"]).repartition(2).write.parquet(f"{run.conf['out']}/{run.id}")

@p.task(after=write)
def read(run):
    assert run.spark.read.parquet(f"{run.conf['out']}/{run.id}").selectExpr("sum(id)").first()[0] > 0
"""


@pytest.fixture(scope="module")
def spark_ui() -> Iterator[tuple[str, str]]:
    """The addresses of a server of its own and of its UI."""
    with tempfile.TemporaryDirectory(prefix="retrofill-spark-") as home:
        with held_port() as port:
            pass
        conf = {"spark.ui.enabled": "true", "spark.ui.port": str(port), "spark.port.maxRetries": "0"}
        settings = Settings(home=Path(home), spark_cores=2, spark_conf=conf)
        with connect_process(settings, java.find(settings)) as (remote, _):
            yield remote, f"http://{HERE}:{port}"


@pytest.fixture
def spark_remote(spark_ui: tuple[str, str]) -> str:
    return spark_ui[0]


def cost(world: World, launch: LaunchRequest) -> dict[str, Any] | None:
    bodies = [event.body for event in world.installation.events(Topic.RUN_REPORTS)]
    (end,) = [each for each in bodies if each["type"] == "AttemptEnded" and each["attempt_id"] == launch.attempt_id]
    found: dict[str, Any] | None = end.get("cost")
    return found


@pytest.mark.long
def test_each_attempt_has_the_cost_of_its_own_jobs(world: World, spark_ui: tuple[str, str]) -> None:
    pool = world.executor(spark_ui=spark_ui[1])
    for thousands in (1, 3):
        found = None
        # A UI that has just started may answer too late for the first attempts.
        while found is None:
            launch = world.launch(CODE, [world.run(day=1), world.run(day=2)], thousands=thousands)
            pool.launch(launch)
            assert world.host.ended()[:3] == (launch.attempt_id, launch.runs[-1].id, True)
            found = cost(world, launch)
        assert found["rows_written"] == 2 * 1000 * thousands
        # The sum of each run reads what it wrote.
        assert found["rows_read"] >= 2 * 1000 * thousands
        assert found["core_seconds"] > 0 and found["shuffle_bytes"] > 0
