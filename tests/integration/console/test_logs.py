"""A run's output appears in the console while it is printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.console import Told, Web, start_console
from tests.support.installation import Installation, until
from tests.support.loading import definition_of, load_pipelines

CODE = """
import time
from pathlib import Path
from retrofill import Pipeline

talks = Pipeline("talks", schedule="@daily", start="2020-01-01", max_active_runs=1)

@talks.task
def only(run):
    print("first", run.interval.start.date(), "password=hunter2", flush=True)
    while not Path({go!r}).exists():
        time.sleep(0.05)
    print("last", flush=True)
"""


@pytest.fixture
def talking(installation: Installation) -> Iterator[Path]:
    """A run that prints a line, and another one once the file exists that this returns."""
    go, file = installation.settings.home / "go", installation.settings.home / "talks.py"
    file.write_text(CODE.format(go=str(go)))
    installation.start("backfill-planner")
    installation.start("light-starter", RETROFILL_DRIVER_SLOTS="1")
    ((pipeline, location),) = load_pipelines(file)
    installation.apply(definition_of(pipeline, location))
    installation.request("talks", "2020-01-01", "2020-01-01", id="talk")
    yield go
    go.touch()


def lines(told: list[Told]) -> list[str]:
    return [line for each in told if each.name == "lines" for line in each.document]


def test_a_log_is_followed_to_its_end(installation: Installation, talking: Path) -> None:
    web = start_console(installation)
    until(lambda: installation.runs_by_state("talk").get("running") == 1, "the run has begun")
    run = installation.value("SELECT id FROM run WHERE backfill_id = 'talk'")
    with web.events(f"/api/v1/runs/{run}/log", follow=1) as events:
        seen: list[Told] = []
        while not any("first 2020-01-01" in line for line in lines(seen)):
            seen.append(next(events))
        assert not any(line == "last" for line in lines(seen))
        talking.touch()
        seen += list(events)
    assert any("last" in line for line in lines(seen))
    assert (seen[-1].name, seen[-1].document["outcome"]) == ("end", "done")
    assert "hunter2" not in str(seen)
    # Afterwards all of it is there at once.
    attempt = seen[-1].document["attempt"]
    with web.events(f"/api/v1/runs/{run}/log", attempt=attempt) as events:
        assert lines(list(events)) == lines(seen)


def test_a_run_without_a_log_says_why(installation: Installation) -> None:
    web = start_console(installation)
    _has_status(web, "/api/v1/runs/1/log", 404, "there is no run 1")
    _has_status(web, "/api/v1/runs/x/log", 400, "use a number")


def _has_status(web: Web, path: str, status: int, said: str) -> None:
    found = web.client.get(path)
    assert (found.status_code, said in found.json()["error"]) == (status, True)
