"""Scenario sizes: full, or small enough to run all of them in less than an hour (``verify``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tests.chaos import (
    bad_manners,
    clock_fault,
    driver_faults,
    outages,
    overload,
    scenarios,
    server_faults,
    several,
    switches,
)
from tests.chaos.crew import NAMES
from tests.chaos.plays import PLAYS
from tests.chaos.scenarios import Scenario
from tests.chaos.stage import Stage

FULL, VERIFY = "full", "verify"


def _of(count: int, scenario: Callable[..., None], **more: object) -> Scenario:
    """Run the scenario for ``count`` services, which the seed chooses."""

    def play(stage: Stage) -> None:
        scenario(stage, stage.chance.sample(NAMES, count), **more)

    return play


SMALLER: Mapping[str, Scenario] = {
    "kills": partial(scenarios.kills, count=8),
    "crash-points": partial(scenarios.crash_points, count=5),
    "freezes": _of(2, scenarios.freezes),
    "relay-freezes": _of(2, scenarios.relay_freezes),
    "random-freezes": partial(scenarios.random_freezes, count=4),
    "rolling": partial(scenarios.rolling, count=2),
    "scaling": partial(scenarios.scaling, most=3),
    "drivers": partial(scenarios.drivers, count=8),
    "drivers-frozen": partial(driver_faults.drivers_frozen, count=2),
    "bad-manners": partial(bad_manners.bad_manners, of_ranges=3, large=()),
    "several": partial(several.several, rounds=2),
    "kafka-killed": partial(server_faults.kafka_killed, count=1),
    # In real time.
    "kafka-away": partial(outages.kafka_away, lease=60.0, away=(10.0, 20.0, 60.0, 180.0)),
    "receiver-away": partial(outages.receiver_away, seconds=30.0),
    "postgres-killed": partial(server_faults.postgres_killed, count=2),
    "postgres-switched": partial(switches.postgres_switched, rounds=1),
    "commits-broken": _of(2, server_faults.commits_broken),
    "postgres-line": _of(1, server_faults.postgres_line),
    "kafka-line": _of(1, server_faults.kafka_line),
    "open-transaction": partial(server_faults.open_transaction, seconds=20.0),
    "clock-jumps": partial(clock_fault.clock_jumps, back=6.0),
    "requests-at-once": partial(overload.requests_at_once, count=1000),
    "giant": partial(overload.giant, days=4, small=20),
}
PROFILES: dict[str, Mapping[str, Scenario]] = {FULL: PLAYS, VERIFY: {**PLAYS, **SMALLER}}
