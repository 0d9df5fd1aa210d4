"""Packed environments on real drivers and executors: each pipeline has its own version of a package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import py4j
import pyspark
import pytest
from tests.integration.driver.world import World, submitting, world
from tests.support.installation import Installation
from tests.support.packed import pack_versions
from tests.support.spark_cluster import connect_process

from retrofill.spark import java
from retrofill_core.domain.data import PackedEnvironment
from retrofill_core.pools import Pool
from retrofill_core.settings import Settings
from run_starter.executors import LaunchRequest

__all__ = ["submitting", "world"]
pytestmark = pytest.mark.spark
# What the driver has, and what a function on an executor has; of two, each waits for the other.
CODE = """
import sys, time
from pathlib import Path
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", executor="EXECUTOR")

@p.task
def look(run):
    import greeting
    from pyspark.sql.functions import udf
    @udf("string")
    def of_executor(_):
        import greeting, sys
        return f"{greeting.VERSION} {sys.executable}"
    out = Path(run.conf["out"])
    (out / f"there-{greeting.VERSION}").touch()
    while len(list(out.glob("there-*"))) < run.conf["together"]:
        time.sleep(0.05)
    (row,) = run.spark.range(1).select(of_executor("id").alias("told")).collect()
    (out / f"told-{run.id}").write_text(repr([greeting.VERSION, sys.executable, *row.told.split()]))
"""
SUBMITS = """
p.submit("script", "job.py", args=["{conf.out}"])
"""
SCRIPT = """
import sys
from pyspark.sql import SparkSession
import greeting
def of_executor(_):
    import greeting, sys
    return [greeting.VERSION, sys.executable]
(told,) = SparkSession.builder.getOrCreate().sparkContext.parallelize([1], 1).map(of_executor).collect()
open(sys.argv[1] + "/script", "w").write(repr([greeting.VERSION, sys.executable, *told]))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PackedEnvironment]]:
    """A code store with two environments."""
    made = tmp_path_factory.mktemp("packed")
    return made / "store", pack_versions(made, made / "store", "greeting", ["1.0", "2.0"])


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Spark Connect server that is not known to be on this machine, so that it gets the environments as files."""
    # With Spark's Python on the PATH, as on a machine of a cluster.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PEX_ROOT", str(tmp_path / "executors"))
    address = {"spark.driver.host": "127.0.0.2", "spark.driver.bindAddress": "127.0.0.2"}
    settings = Settings(home=tmp_path / "spark", spark_cores=2, spark_conf=address)
    with connect_process(settings, java.find(settings)) as (remote, _):
        yield remote


def in_environment(launch: LaunchRequest, environment: PackedEnvironment) -> LaunchRequest:
    code = launch.pipeline.code.model_copy(update={"environment": environment})
    return replace(launch, pipeline=launch.pipeline.model_copy(update={"code": code}))


def succeed(world: World, launches: list[LaunchRequest]) -> None:
    ended = {world.host.ended(300).attempt_id for _ in launches}
    assert ended == {launch.attempt_id for launch in launches}
    for launch in launches:
        assert world.fields(launch)[-2:] == ["RunReported succeeded", "AttemptEnded done"], world.log(launch)


@pytest.mark.long
def test_two_pipelines_at_once_have_their_own_versions(
    world: World, store: tuple[Path, list[PackedEnvironment]]
) -> None:
    executor = world.executor(driver_slots=2, code_store=str(store[0]))
    launches = [in_environment(world.launch(pool_code(), together=2), each) for each in store[1]]
    for launch in launches:
        executor.launch(launch)
    succeed(world, launches)
    for launch, environment, version in zip(launches, store[1], ("1.0", "2.0"), strict=True):
        of_driver, python, of_executor, executors_python = world.by_task(launch)
        assert (of_driver, of_executor) == (version, version)
        assert environment.sha256 in python
        # The same files serve both, on one machine.
        assert executors_python == python


def pool_code() -> str:
    return CODE.replace("EXECUTOR", "pool")


@pytest.mark.long
def test_executors_elsewhere_get_the_file(
    installation: Installation,
    elsewhere: str,
    store: tuple[Path, list[PackedEnvironment]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = World(installation, elsewhere, tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    try:
        executor = made.executor(driver_slots=2, code_store=str(store[0]))
        launches = [in_environment(made.launch(pool_code(), together=2), each) for each in store[1]]
        for launch in launches:
            executor.launch(launch)
        succeed(made, launches)
        for launch, version in zip(launches, ("1.0", "2.0"), strict=True):
            of_driver, python, of_executor, executors_python = made.by_task(launch)
            assert (of_driver, of_executor) == (version, version)
            assert executors_python != python
    finally:
        for each in made.executors:
            each.close()


@pytest.mark.long
def test_spark_submit_and_scripts_have_it(submitting: World, store: tuple[Path, list[PackedEnvironment]]) -> None:
    (submitting.out / "job.py").write_text(SCRIPT)
    code = CODE.replace("EXECUTOR", "spark-submit") + SUBMITS
    launch = in_environment(submitting.launch(code, together=1), store[1][0])
    submitting.executor(code_store=str(store[0]), script_allow=[f"{submitting.out}/*"]).launch(launch)
    succeed(submitting, [launch])
    found = [submitting.by_task(launch), eval((submitting.out / "script").read_text())]
    for of_driver, python, of_executor, executors_python in found:
        assert (of_driver, of_executor) == ("1.0", "1.0")
        assert store[1][0].sha256 in python
        assert executors_python == python


# The file itself imports the package.
BARE = """
import greeting, importlib.util
""" + CODE.replace("EXECUTOR", "spark-submit").replace(
    "    import greeting\n    from", "    assert importlib.util.find_spec('pydantic') is None\n    from"
)


@pytest.mark.long
def test_on_a_python_that_has_pyspark_and_nothing_of_ours(
    submitting: World, store: tuple[Path, list[PackedEnvironment]], tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    (packages,) = (tmp_path / "bare").glob("lib/python3.*/site-packages")
    for module in (pyspark, py4j):
        (packages / module.__name__).symlink_to(Path(module.__file__).parent)
    pool = Pool.model_validate({"driver_python": tmp_path / "bare" / "bin" / "python"})
    executor = submitting.executor(code_store=str(store[0]), pools={"default": pool})
    # What the file imports when it is read here.
    with pytest.MonkeyPatch.context() as patched:
        (tmp_path / "read").mkdir()
        (tmp_path / "read" / "greeting.py").touch()
        patched.syspath_prepend(str(tmp_path / "read"))
        launch = in_environment(submitting.launch(BARE, together=1), store[1][1])
    executor.launch(launch)
    succeed(submitting, [launch])
    of_driver, python, of_executor, executors_python = submitting.by_task(launch)
    assert (of_driver, of_executor) == ("2.0", "2.0")
    assert store[1][1].sha256 in python
    assert executors_python == python
