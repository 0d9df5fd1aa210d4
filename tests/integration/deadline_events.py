"""A stack whose runs last until the test reports for them, and what it says about deadlines."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tests.support.events import Event
from tests.support.installation import Installation, until

from retrofill_core.contract.runs import AttemptEnded, ErrorInfo, Report, RunReported, TaskReported
from retrofill_core.contract.topics import Topic

NEVER = "3600"


@pytest.fixture
def stack(installation: Installation) -> Installation:
    """A planner, a watcher, and a run-starter whose drivers run until the test reports for them.

    One whose attempt is reported as done stays occupied: there are drivers for all runs of a test.
    """
    installation.start("backfill-planner", wait=False)
    installation.start("instant-starter", wait=False, INSTANT_SECONDS=NEVER, RETROFILL_DRIVER_SLOTS="8")
    installation.start("deadline-watcher")
    return installation


def run_of(stack: Installation, id: str, day: str) -> dict[str, Any]:
    """Wait until the day's run is running. Returns it."""
    found: list[dict[str, Any]] = []

    def runs() -> bool:
        found[:] = stack.query(
            "SELECT * FROM run WHERE backfill_id = %s AND interval_start = %s AND state = 'running'", id, day
        )
        return bool(found)

    until(runs, f"the run of {day} runs")
    return found[0]


def report(stack: Installation, run: dict[str, Any], state: str, task: str | None = None) -> None:
    """Publish reports as a driver would: of a task, or the end of the run and of its attempt.

    ``lost``: as the host of a driver that exited.
    """
    attempt = {"backfill_id": run["backfill_id"], "attempt_id": run["attempt_id"]}
    fields = {**attempt, "run_id": run["id"], "attempt": run["attempt"], "state": state}
    error = ErrorInfo(type="ValueError", message="bad") if state == "failed" else None
    reports: list[Report]
    if task is not None:
        reports = [TaskReported(**fields, task=task, error=error)]
    elif state == "lost":
        reports = [AttemptEnded(**attempt, state="lost", begun=run["id"])]
    else:
        reports = [RunReported(**fields, error=error), AttemptEnded(**attempt, state="done")]
    for message in reports:
        stack.publish(Topic.RUN_REPORTS, run["backfill_id"], message)


def fields(stack: Installation, *types: str) -> list[Event]:
    """The events about deadlines."""
    return [e for e in stack.events(Topic.DEADLINE_MISSED) if e.body["type"] in (types or ("DeadlineMissed",))]


def states(stack: Installation) -> dict[str, list[str]]:
    """The deadlines' states, by alert."""
    found: dict[str, list[str]] = {}
    for row in stack.query("SELECT alert, state FROM deadline ORDER BY alert, id"):
        found.setdefault(row["alert"], []).append(row["state"])
    return found


def moment(text: str) -> datetime:
    """A timestamp of an event."""
    return datetime.fromisoformat(text)
