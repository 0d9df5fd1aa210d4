"""One directory for several intervals, through the real services and drivers: one is published, the others fail with what to do.

Axes: what the path leaves out (the whole interval, the clock's repeated hour, the day) × how the runs are executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.installation import Installation
from tests.support.loading import definition_of, load_pipelines
from tests.support.tiers import some

from retrofill_core.contract.backfills import BackfillPublishRequested, BackfillRequested
from retrofill_core.contract.topics import Topic

CODE = """
from pathlib import Path
from retrofill import Pipeline

p = Pipeline("p", schedule="{schedule}", start="2023-01-01", timezone="{zone}", max_active_runs=4, **{more})

@p.task
def write(run):
    for interval in run.intervals:
        to = Path(run.stage(run.conf["path"].format(interval=interval), interval))
        to.mkdir(parents=True)
        (to / "part-0").write_text(interval.start.isoformat())
"""


@dataclass(frozen=True)
class Layout:
    """Directories of intervals that are not all apart: ``places`` of them."""

    path: str
    schedule: str
    zone: str
    starts: tuple[str, ...]
    places: int
    why: str


LAYOUTS = {
    "one directory for every day": Layout(
        "root",
        "@daily",
        "UTC",
        ("2023-03-01T00:00:00Z", "2023-03-02T00:00:00Z", "2023-03-03T00:00:00Z", "2023-03-04T00:00:00Z"),
        1,
        "put the whole interval into the path",
    ),
    "the clock's hour, one of which is shown twice": Layout(
        "hour={interval.start:%Y-%m-%d-%H}",
        "@hourly",
        "America/Los_Angeles",
        (
            "2023-11-05T00:00:00-07:00",
            "2023-11-05T01:00:00-07:00",
            "2023-11-05T01:00:00-08:00",
            "2023-11-05T02:00:00-08:00",
        ),
        3,
        "the clock shows 2023-11-05 01:00 twice, so add its offset to the path (%z), or schedule the pipeline in UTC",
    ),
    "the hour without its day": Layout(
        "hour={interval.start:%H}",
        "0 */12 * * *",
        "UTC",
        ("2023-03-01T00:00:00Z", "2023-03-01T12:00:00Z", "2023-03-02T00:00:00Z", "2023-03-02T12:00:00Z"),
        2,
        "put the whole interval into the path",
    ),
}
# How the pipeline's runs are executed, and how they are requested.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "four at once": ({}, {}),
    "a batch": ({"batch_size": 4}, {}),
    "a range": ({"batch_size": 4, "batch_mode": "range"}, {}),
    "a review": ({}, {"publish": "review"}),
    "single dates": ({}, {"intervals": True}),
}


@pytest.mark.long
@pytest.mark.parametrize("way", some(WAYS, "a review"))
@pytest.mark.parametrize("name", some(LAYOUTS, "the clock's hour, one of which is shown twice"))
def test_of_several_intervals_with_one_directory_one_is_published(
    installation: Installation, tmp_path: Path, name: str, way: str
) -> None:
    layout, (more, request) = LAYOUTS[name], WAYS[way]
    out = tmp_path / "out"
    file = tmp_path / "pipeline.py"
    file.write_text(CODE.format(schedule=layout.schedule, zone=layout.zone, more=more))
    ((pipeline, location),) = load_pipelines(file)
    installation.start("backfill-planner")
    installation.start("light-starter", RETROFILL_DRIVER_SLOTS="4")
    installation.apply(definition_of(pipeline, location))
    of = {"intervals": layout.starts} if "intervals" in request else {"from": layout.starts[0], "to": layout.starts[-1]}
    publish = {name: value for name, value in request.items() if name == "publish"}
    wanted = {"pipeline": "p", "conf": {"path": f"{out}/{layout.path}"}, **of, **publish}
    installation.publish(Topic.BACKFILL_REQUESTS, "b", BackfillRequested.model_validate(wanted))
    if publish:
        installation.wait_state("b", "in_review", seconds=120)
        assert installation.runs_by_state("b") == states(layout, "staged")
        assert written(out) == []
        installation.wait_answer(installation.publish(Topic.BACKFILL_REQUESTS, "b", BackfillPublishRequested()))
    installation.wait_state("b", "failed", seconds=120)
    assert installation.runs_by_state("b") == states(layout, "succeeded")
    done = installation.query("SELECT interval_start FROM run WHERE state = 'succeeded'")
    assert written(out) == sorted(row["interval_start"] for row in done), "what a reader sees is what succeeded"
    for row in installation.query("SELECT error FROM run WHERE state = 'failed'"):
        assert (row["error"]["type"], layout.why in row["error"]["message"]) == ("PlaceTaken", True), row


def states(layout: Layout, accepted: str) -> dict[str, int]:
    return {accepted: layout.places, "failed": len(layout.starts) - layout.places}


def written(out: Path) -> list[datetime]:
    """The starts of the intervals that a reader sees."""
    return sorted(datetime.fromisoformat(part.read_text()) for part in out.glob("*/part-*"))
