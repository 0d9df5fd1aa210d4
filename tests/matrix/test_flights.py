"""The flights with a driver in the interpreter that ``RETROFILL_TEST_PYTHON`` names, or in this one, on real Kafka.

The interpreter has pyspark, and nothing of Retrofill. ``python -m tests.matrix`` makes some.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from retrofill_core.pools import Pool
from tests.integration.driver.world import World, submitting
from tests.matrix.connect_server import connect_server
from tests.support.loading import definition_of, load_pipelines

__all__ = ["submitting"]
pytestmark = [pytest.mark.spark, pytest.mark.long]
PYTHON = os.environ.get("RETROFILL_TEST_PYTHON") or sys.executable
FLIGHTS = Path(__file__).parents[2] / "examples" / "flights"
DAYS = ["2013-01-01", "2013-01-02"]
# What the services need, of which a driver must not import anything.
OURS = ("pydantic", "psycopg", "confluent_kafka", "sqlalchemy")
CODE = f"""
import json, platform, sys
from pathlib import Path
import pyspark
from pyspark.sql.functions import udf
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", executor=EXECUTOR, batch_size=2)

@p.task
def look(run):
    @udf("long")
    def twice(x): return 2 * x
    total = sum(row.n for row in run.spark.range(4).select(twice("id").alias("n")).collect())
    ours = [name for name in sys.modules if name.split(".")[0] in {OURS!r}]
    run.log.info("counted", total=total)
    told = {{
        "spark": run.spark.version, "pyspark": pyspark.__version__, "python": platform.python_version(),
        "connect": "connect" in type(run.spark).__module__, "total": total, "ours": ours,
    }}
    (Path(run.conf["out"]) / f"told-{{run.id}}").write_text(json.dumps(told))
"""


@pytest.fixture(params=["spark-submit", "pool"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(submitting: World, way: str, tmp_path: Path) -> Iterator[World]:
    """A world whose pool has that interpreter and, for warm drivers, its Spark's Connect server."""
    submitting.settings = submitting.settings.model_copy(
        update={"pools": {"default": Pool.model_validate({"driver_python": PYTHON})}}
    )
    if way == "spark-submit":
        yield submitting
        return
    (tmp_path / "server").mkdir()
    with connect_server(PYTHON, tmp_path / "server") as remote:
        submitting.settings = submitting.settings.model_copy(update={"spark_remote": remote})
        yield submitting


def test_the_flights_are_published_and_equal_pandas(world: World, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = world.out / "data"
    subprocess.run([sys.executable, FLIGHTS / "prepare.py", data], check=True, timeout=120)
    flights, location = next(
        (each, where) for each, where in load_pipelines(FLIGHTS / "pipeline.py") if each.name == "flights_daily"
    )
    runs = [world.run(day=day) for day in (1, 2)]
    definition = definition_of(flights, location).model_copy(update={"executor": way})
    launch = replace(world.launch(CODE.replace("EXECUTOR", repr(way)), runs, data=str(data)), pipeline=definition)
    world.executor().launch(launch)
    end = world.host.ended(240)
    assert (end.attempt_id, end.reported) == (launch.attempt_id, True), (end, world.log(launch)[-3000:])
    for run in runs:
        fields = world.fields(launch, run)
        assert (fields[0], fields[-2:]) == ("RunBegan", ["RunStaged", "RunReported succeeded"]), world.log(launch)
    assert world.fields(launch)[-1] == "AttemptEnded done"
    monkeypatch.syspath_prepend(str(FLIGHTS))
    published = import_module("outputs").read_folder(data / "delays", DAYS)
    assert import_module("demo").compare(published, DAYS) > 0


def test_a_driver_has_the_users_versions_and_needs_nothing_else(world: World, way: str) -> None:
    launch = world.launch(CODE.replace("EXECUTOR", repr(way)))
    world.executor().launch(launch)
    end = world.host.ended(240)
    assert (end.attempt_id, end.reported) == (launch.attempt_id, True), (end, world.log(launch)[-3000:])
    told = json.loads((world.out / f"told-{launch.runs[0].id}").read_text())
    versions = "import json, platform, pyspark; print(json.dumps([pyspark.__version__, platform.python_version()]))"
    theirs = json.loads(subprocess.run([PYTHON, "-c", versions], check=True, capture_output=True, text=True).stdout)
    assert [told["pyspark"], told["python"]] == theirs
    assert told["spark"] == told["pyspark"]
    assert (told["connect"], told["total"], told["ours"]) == (way == "pool", 12, [])
