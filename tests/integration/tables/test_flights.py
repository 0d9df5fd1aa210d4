"""The demo's pipeline, whose figures go into a table of each format."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from tests.integration.driver.world import World, _world
from tests.support.installation import Installation
from tests.support.lake import FORMATS
from tests.support.loading import definition_of, load_pipelines

from retrofill.states import AttemptMode
from retrofill_core.contract.topics import Topic

pytestmark = pytest.mark.spark
FLIGHTS = Path(__file__).parents[3] / "examples" / "flights"
DAYS = ["2013-01-01", "2013-01-02", "2013-01-03"]


@pytest.fixture
def world(
    installation: Installation, table_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """Executors of drivers that use the server with tables."""
    monkeypatch.syspath_prepend(str(FLIGHTS))
    yield from _world(World(installation, table_server, tmp_path), monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("format", FORMATS)
def test_a_range_of_days_is_published_in_the_table_and_equals_pandas(
    world: World, format: str, table_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo, outputs = (import_module(name) for name in ("demo", "outputs"))
    data = world.out / "data"
    subprocess.run([sys.executable, FLIGHTS / "prepare.py", data], check=True, timeout=120)
    # The server has a catalog of another name.
    monkeypatch.setattr(outputs, "CATALOG", "lake")
    output = outputs.output_of(format, data)
    flights, location = next(
        (each, where) for each, where in load_pipelines(FLIGHTS / "pipeline.py") if each.name == "flights_daily"
    )
    runs = [world.run(day=day) for day in range(1, len(DAYS) + 1)]
    launch = world.launch(runs=runs, **output.conf)
    launch = replace(launch, mode=AttemptMode.RANGE, pipeline=definition_of(flights, location))
    with demo.session(table_server) as spark:
        output.create(spark)
        world.executor().launch(launch)
        assert world.host.ended(240).reported, world.log(launch)[-3000:]
        assert world.fields(launch)[-1] == "AttemptEnded done", world.log(launch)[-3000:]
        assert demo.compare(output.read(spark, DAYS), DAYS) > 0
    bodies = [event.body for event in world.installation.events(Topic.RUN_REPORTS)]
    published = [body["published"] for body in bodies if body["type"] == "RunReported"]
    assert len(published) == len(DAYS)
    # One table, and one commit for the range.
    assert len({(each["name"], each["version"]) for (each,) in published}) == 1
