"""Real drivers that stage a table, are killed at every point of its publication, and are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.driver.world import World, _world
from tests.support.installation import Installation
from tests.support.lake import Lake
from tests.support.tiers import some

from retrofill.states import AttemptMode
from retrofill_core.contract.topics import Topic
from run_starter.executors import LaunchRequest

pytestmark = pytest.mark.spark
CODE = """
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", timezone="America/New_York")

@p.task
def write(run):
    day = f"DATE '{run.interval.start:%Y-%m-%d}'"
    rows = run.spark.sql(f"SELECT {day} AS day, id AS n, 'ours' AS note FROM range(2)")
    run.stage_table(rows, run.conf["table"], column="day")

@p.task(after=write)
def check(run):
    assert run.staged_table(run.conf["table"]).count() == 2
    run.spark.stop()
"""
# Before ``stage:told`` nothing is accepted.
POINTS = ("stage:told", "table:look", "table:commit", "table:drop", "publish:done")


@pytest.fixture
def tables(
    installation: Installation, table_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """Executors of drivers that use the server with tables."""
    yield from _world(World(installation, table_server, tmp_path), monkeypatch)


def publication_of(world: World, launch: LaunchRequest) -> LaunchRequest:
    """The launch that publishes what a lost attempt has staged."""
    bodies = [event.body for event in world.installation.events(Topic.RUN_REPORTS)]
    (outputs,) = [b["outputs"] for b in bodies if b["attempt_id"] == launch.attempt_id and b["type"] == "RunStaged"]
    (run,) = launch.runs
    run = replace(run, publication=1, accepted_attempt=launch.attempt_id, outputs=tuple(outputs))
    launch = replace(world.launch(CODE, [run]), mode=AttemptMode.PUBLISH)
    (world.out / "pipeline.py").write_text("raise AssertionError('no user code is to be imported')")
    return launch


def test_a_driver_publishes_its_table(tables: World, lake: Lake) -> None:
    launch = tables.launch(CODE, table=lake.table)
    tables.executor().launch(launch)
    assert tables.host.ended(240).reported, tables.log(launch)
    assert tables.fields(launch)[-3:] == ["RunStaged", "RunReported succeeded", "AttemptEnded done"]
    assert (lake.content(), lake.commits(), lake.staged()) == (["1 ours"] * 2, 1, [])


@pytest.mark.long
@pytest.mark.parametrize("point", some(POINTS, "table:commit"))
def test_a_driver_killed_anywhere_after_it_staged_is_replaced_by_a_publisher(
    tables: World, lake: Lake, point: str
) -> None:
    launch = tables.launch(CODE, table=lake.table)
    killed = tables.executor(crash_point=point)
    killed.launch(launch)
    assert not tables.host.ended(240).reported, tables.log(launch)
    killed.close()
    assert lake.content() == (["1 ours"] * 2 if POINTS.index(point) >= POINTS.index("table:drop") else [])
    publication = publication_of(tables, launch)
    tables.executor().launch(publication)
    assert tables.host.ended(240).reported, tables.log(publication)
    assert "RunReported succeeded" in tables.fields(publication)
    assert (lake.content(), lake.commits(), lake.staged()) == (["1 ours"] * 2, 1, [])


@pytest.mark.long
def test_a_publisher_that_is_not_permitted_changes_nothing(tables: World, lake: Lake) -> None:
    tables.host.accepts = False
    launch = tables.launch(CODE, table=lake.table)
    tables.executor().launch(launch)
    assert tables.host.ended(240).reported, tables.log(launch)
    assert "RunReported succeeded" not in tables.fields(launch)
    assert (lake.content(), len(lake.staged())) == ([], 1)
