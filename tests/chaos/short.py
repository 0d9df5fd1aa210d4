"""The short selection that is part of the tests: the harshest faults in one scenario."""

from __future__ import annotations

from tests.chaos import scenarios, several
from tests.chaos.stage import Stage


def short(stage: Stage) -> None:
    """Kill every service at a crash point, then kill both servers while all drivers are frozen."""
    scenarios.crash_points(stage, count=1)
    several.group(stage, [several.frozen_drivers, several.killed_kafka, several.killed_postgres])
