"""A run's log appears on its page while it is printed."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.console import Web
from tests.support.installation import Installation, until
from tests.support.loading import definition_of, load_pipelines

CODE = """
import time
from pathlib import Path
from retrofill import Pipeline

talks = Pipeline("talks", schedule="@daily", start="2020-01-01", max_active_runs=1)

@talks.task
def only(run):
    print("the first line", flush=True)
    while not Path({go!r}).exists():
        time.sleep(0.05)
    print("the last line", flush=True)
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_line_is_seen_when_it_is_printed(installation: Installation, console: Web, page: Page) -> None:
    go, file = installation.settings.home / "go", installation.settings.home / "talks.py"
    file.write_text(CODE.format(go=str(go)))
    installation.start("backfill-planner")
    # Real drivers, without Spark.
    installation.start("light-starter", RETROFILL_DRIVER_SLOTS="1")
    ((pipeline, location),) = load_pipelines(file)
    installation.apply(definition_of(pipeline, location))
    id = installation.request("talks", "2020-01-01", "2020-01-01")
    until(lambda: installation.runs_by_state(id).get("running") == 1, "the run has begun")
    run = installation.value("SELECT id FROM run")
    page.goto(f"/runs/{run}")
    section, log = page.get_by_role("region", name="Log"), page.get_by_role("log")
    expect(log).to_contain_text("the first line")
    expect(section).to_contain_text(re.compile("lines, live"))
    expect(log).not_to_contain_text("the last line")
    go.touch()
    expect(log).to_contain_text("the last line")
    expect(section).not_to_contain_text("live")
    expect(page.locator(".page-head .badge")).to_have_text("succeeded")
