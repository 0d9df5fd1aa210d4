"""A year in ranges with three bad days: real services and drivers, tasks without Spark."""

from __future__ import annotations

import pytest
from tests.support.installation import Installation
from tests.support.loading import definition_of, load_pipelines

BAD = ["2013-02-03", "2013-07-20", "2013-11-30"]
# Two drivers begin with half of the year each. A bad day ends ranges of 183, 91, 45 and 22 days, whose
# halves are tried again; the last 11 are tried one by one, with another attempt after the bad one.
MOST_ATTEMPTS = 2 + len(BAD) * (2 * 4 + 4)
CODE = """
from pathlib import Path
from retrofill import Pipeline

year = Pipeline("year", schedule="@daily", start="2013-01-01", max_active_runs=2, batch_size=365, batch_mode="range")

@year.task
def write(run):
    for interval in run.intervals:
        day = f"{interval.start:%Y-%m-%d}"
        if day in run.conf["bad"]:
            raise ValueError(f"the source of {day} is corrupt")
    for interval in run.intervals:
        to = Path(run.stage(run.conf["out"] + f"/day={interval.start:%Y-%m-%d}", interval))
        to.mkdir(parents=True)
        (to / "part-0").write_text("figures")
"""


@pytest.mark.long
def test_three_bad_days_fail_alone_in_few_attempts(installation: Installation) -> None:
    out = installation.settings.home / "figures"
    installation.start("backfill-planner")
    installation.start("light-starter", RETROFILL_DRIVER_SLOTS="2")
    file = installation.settings.home / "year.py"
    file.write_text(CODE)
    ((pipeline, location),) = load_pipelines(file)
    installation.apply(definition_of(pipeline, location))
    id = installation.request("year", "2013-01-01", "2013-12-31", conf={"out": str(out), "bad": BAD})
    installation.wait_state(id, "failed", seconds=120)
    assert installation.runs_by_state(id) == {"succeeded": 362, "failed": 3}
    failed = installation.query("SELECT interval_start, error FROM run WHERE state = 'failed' ORDER BY interval_start")
    assert [(f"{run['interval_start']:%Y-%m-%d}", run["error"]["message"]) for run in failed] == [
        (day, f"the source of {day} is corrupt") for day in BAD
    ]
    published = {each.name.removeprefix("day=") for each in out.iterdir() if each.name.startswith("day=")}
    assert len(published) == 362
    assert published.isdisjoint(BAD)
    assert installation.value("SELECT count(*) FROM attempt") <= MOST_ATTEMPTS
