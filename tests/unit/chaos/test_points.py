"""The chaos tests kill at every crash point of the services, but for those that their workload cannot reach."""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos.points import COMMON, OWN, POINTS

import retrofill_core
from retrofill_core.contract.topics import SERVICES

BUS = Path(retrofill_core.__file__).parent / "bus"
ROOT = BUS.parents[2]
# Names that contain a key (``handle:``, ``check:before-begin:``) are for tests of one message or check.
NAMED = re.compile(r'crash_point\("([^"]+)"\)')
# The workload asks for no review, Kafka refuses none of its events, nobody adds partitions, and the only run-starter
# acknowledges its own attempts with the claim.
UNREACHED = {"review:written", "relay:setting-aside", "added:before-commit", "host:acknowledged"}


def points_in(folder: Path) -> set[str]:
    return {name for file in folder.rglob("*.py") for name in NAMED.findall(file.read_text())}


def test_the_points_of_the_bus_are_those_of_all_services() -> None:
    assert points_in(BUS) - UNREACHED == set(COMMON)


def test_each_service_is_killed_at_its_own_points() -> None:
    own = {name: points_in(ROOT / "services" / service.package) for name, service in SERVICES.items()}
    assert {name: points - UNREACHED for name, points in own.items()} == {name: set(OWN[name]) for name in SERVICES}


def test_what_the_workload_cannot_reach_exists() -> None:
    everywhere = points_in(BUS).union(*(points_in(ROOT / "services" / each.package) for each in SERVICES.values()))
    assert everywhere >= UNREACHED
    assert not UNREACHED.intersection(*map(set, POINTS.values()))
