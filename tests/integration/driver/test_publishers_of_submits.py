"""Publishers of pipelines by spark-submit: tables in a catalog that only the pipeline knows, directories without any Spark."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.driver.world import World, _world
from tests.integration.tables.test_drivers_of_tables import publication_of
from tests.support.installation import Installation
from tests.support.maven import jar
from tests.support.tiers import some

from retrofill.outputs.kept import MARKER, key_of
from retrofill.outputs.publication import sealed_folder
from retrofill.states import AttemptMode
from retrofill_core.contract.topics import Topic
from retrofill_tools.stack.maven import Artifact

ICEBERG = Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0", "48 MB")
CODE = """
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", timezone="America/New_York", executor="spark-submit", spark_conf={
    "spark.sql.catalog.own": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.own.type": "hadoop",
    "spark.sql.catalog.own.warehouse": "WAREHOUSE",
})

@p.task
def write(run):
    run.spark.sql("CREATE NAMESPACE IF NOT EXISTS own.db")
    run.spark.sql("CREATE TABLE IF NOT EXISTS own.db.t (day date, n bigint) USING iceberg PARTITIONED BY (day)")
    day = f"DATE '{run.interval.start:%Y-%m-%d}'"
    run.stage_table(run.spark.sql(f"SELECT {day} AS day, id AS n FROM range(2)"), "own.db.t", column="day")
"""


@pytest.fixture
def submitting(installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Without a Spark Connect server."""
    yield from _world(World(installation, None, tmp_path), monkeypatch)


def snapshots(warehouse: Path) -> list[dict[str, str]]:
    """What the table's snapshots say of themselves, from its metadata."""
    files = warehouse.glob("db/t/metadata/v*.metadata.json")
    newest = max(files, key=lambda file: int(file.name.split(".")[0][1:]))
    return [each["summary"] for each in json.loads(newest.read_text())["snapshots"]]


def errors(world: World) -> list[object]:
    """What drivers reported as errors."""
    world.host.flush()
    return [event.body["error"] for event in world.installation.events(Topic.RUN_REPORTS) if event.body.get("error")]


@pytest.mark.long
@pytest.mark.spark
def test_a_lost_publisher_of_a_catalog_that_only_the_pipeline_knows_is_replaced(
    submitting: World, tmp_path: Path
) -> None:
    warehouse, more = tmp_path / "lake", {"spark_jars": [str(jar(ICEBERG))], "spark_conf_allow": ["spark.*"]}
    code = CODE.replace("WAREHOUSE", str(warehouse))
    launch = submitting.launch(code)
    killed = submitting.executor(crash_point="table:commit", **more)
    killed.launch(launch)
    assert not submitting.host.ended(300).reported, errors(submitting)
    killed.close()
    assert snapshots(warehouse) == []
    publication = publication_of(submitting, launch)
    # The code is gone, but not the settings with which it ran.
    publication = replace(publication, pipeline=launch.pipeline, publishers=(launch.attempt_id,))
    submitting.executor(**more).launch(publication)
    assert submitting.host.ended(300).reported, submitting.log(publication)
    assert "RunReported succeeded" in submitting.fields(publication), errors(submitting)
    (published,) = snapshots(warehouse)
    assert (published["retrofill.attempt_id"], published["total-records"]) == (str(launch.attempt_id), "2")


@pytest.mark.long
@pytest.mark.parametrize(
    ("remote", "executor"),
    some(
        itertools.product([None, "sc://127.0.0.1:1"], ["pool", "spark-submit"]),
        (None, "spark-submit"),
        ("sc://127.0.0.1:1", "pool"),
    ),
)
def test_directories_are_published_without_any_spark(
    submitting: World, tmp_path: Path, executor: str, remote: str | None
) -> None:
    """Where no server answers, the pool's warm drivers never get ready."""
    target, accepted = tmp_path / "days" / "day=1", 17
    launch = submitting.launch("from retrofill import Pipeline\np = Pipeline('p', schedule='@daily')\np.task(print)\n")
    run = replace(launch.runs[0], publication=1, accepted_attempt=accepted, outputs=(str(target),))
    staged = sealed_folder(target, key_of("", run.id), accepted) / "new"
    staged.mkdir(parents=True)
    (staged / "part-0").write_text("rows")
    (staged / MARKER).write_text(json.dumps({"run": key_of("", run.id)}))
    definition = launch.pipeline.model_copy(update={"executor": executor})
    publication = replace(launch, mode=AttemptMode.PUBLISH, runs=(run,), pipeline=definition)
    submitting.executor(spark_remote=remote, driver_start_seconds=60.0).launch(publication)
    assert submitting.host.ended(120).reported, submitting.log(publication)
    assert "RunReported succeeded" in submitting.fields(publication)
    assert (target / "part-0").read_text() == "rows"
