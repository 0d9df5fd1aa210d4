"""A stack whose runs last until the test reports for them, and what it says about deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.support.events import Event
from tests.support.installation import Installation, until
from tests.support.servers import Servers
from tests.support.stacks import shared_stack

from retrofill_core.contract.runs import AttemptEnded, ErrorInfo, Report, RunReported, TaskReported
from retrofill_core.contract.topics import Topic


@pytest.fixture(scope="module")
def stack(servers: Servers) -> Iterator[Installation]:
    """A planner, a watcher, and a run-starter whose drivers run until the test reports for them.

    Each test has a pipeline of its own. A driver whose attempt is reported as done stays occupied: there is one for
    each run of all tests.
    """
    with shared_stack(servers, INSTANT_SECONDS="3600", RETROFILL_DRIVER_SLOTS="32") as made:
        made.start("deadline-watcher")
        yield made


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


def fields(stack: Installation, *types: str, pipeline: str | None = None) -> list[Event]:
    """The events about the deadlines of a pipeline, or of all."""
    events = [e for e in stack.events(Topic.DEADLINE_MISSED) if e.body["type"] in (types or ("DeadlineMissed",))]
    return [e for e in events if pipeline is None or e.body["pipeline"] == pipeline]


def states(stack: Installation, pipeline: str = "p") -> dict[str, list[str]]:
    """The states of a pipeline's deadlines, by alert."""
    found: dict[str, list[str]] = {}
    for row in stack.query("SELECT alert, state FROM deadline WHERE pipeline = %s ORDER BY alert, id", pipeline):
        found.setdefault(row["alert"], []).append(row["state"])
    return found


def moment(text: str) -> datetime:
    """A timestamp of an event."""
    return datetime.fromisoformat(text)
