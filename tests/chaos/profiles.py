"""The sizes of the scenarios: all of them in full, or so small that all together take half an hour (``verify``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.chaos import driver_faults, overload, scenarios, server_faults, several
from tests.chaos.crew import NAMES
from tests.chaos.plays import PLAYS
from tests.chaos.scenarios import Scenario
from tests.chaos.stage import Stage

FULL, VERIFY = "full", "verify"


def _lines_of_two(scenario: Scenario) -> Scenario:
    """Of two services, which the seed chooses."""

    def play(stage: Stage) -> None:
        scenario(stage, stage.chance.sample(NAMES, 2))  # type: ignore[call-arg]

    return play


SMALLER: Mapping[str, Scenario] = {
    "crash-points": partial(scenarios.crash_points, count=9),
    "drivers-frozen": partial(driver_faults.drivers_frozen, count=2),
    "several": partial(several.several, rounds=2),
    "postgres-line": _lines_of_two(server_faults.postgres_line),
    "kafka-line": _lines_of_two(server_faults.kafka_line),
    "open-transaction": partial(server_faults.open_transaction, seconds=30.0),
    "requests-at-once": partial(overload.requests_at_once, count=1500),
    "giant": partial(overload.giant, days=7, small=40),
}
PROFILES: dict[str, Mapping[str, Scenario]] = {FULL: PLAYS, VERIFY: {**PLAYS, **SMALLER}}
