"""The short selection, which is part of the tests: what breaks most, in one go."""

from __future__ import annotations

from tests.chaos import scenarios, several
from tests.chaos.stage import Stage


def short(stage: Stage) -> None:
    """Every service killed at a point around its commits; then both servers killed while all drivers stand still."""
    scenarios.crash_points(stage, count=1)
    several.group(stage, [several.frozen_drivers, several.killed_kafka, several.killed_postgres])
