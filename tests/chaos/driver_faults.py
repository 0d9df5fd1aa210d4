"""Driver faults with a live host: drivers frozen past their lease, or cut off from Kafka only."""

from __future__ import annotations

from collections.abc import Collection

import psutil

from retrofill_tools.stack.processes import is_alive
from tests.chaos.faults import freeze_drivers, thaw_drivers
from tests.chaos.server_faults import CUT_SECONDS, back, own
from tests.chaos.stage import Stage
from tests.support.installation import until
from tests.support.proxy import Proxy

LOST = "SELECT count(*) FROM attempt WHERE outcome = 'lost'"
# The Kafka address to which a run-starter publishes reports (``light_starter.py``).
DRIVERS_KAFKA = "CHAOS_DRIVERS_KAFKA"


def drivers_frozen(stage: Stage, count: int = 3) -> None:
    """SIGSTOP all drivers of a run-starter until their attempts are lost, then resume them."""
    for _ in range(count):
        stage.wait(stage.chance.uniform(0.3, 1.0))
        before = stage.made.value(LOST)
        frozen = freeze_drivers(stage, "SIGSTOP of a driver")
        wait_lost(stage, before)
        thaw_drivers(frozen)
        _wait_one_ends(frozen)
        stage.recovered("drivers woken")


def _wait_one_ends(frozen: Collection[psutil.Process]) -> None:
    """Idle drivers missed nothing, so they survive."""
    until(lambda: not all(map(is_alive, frozen)), "a driver that slept through its lease ends", seconds=60)


def drivers_without_kafka(stage: Stage, count: int = 2) -> None:
    """Cut off or stall Kafka for the drivers only, for several leases: their host renews them in Postgres."""
    with own(stage).kafka_line() as line:
        stage.crew.equip("run-starter", **{DRIVERS_KAFKA: f"127.0.0.1:{line.port}"})
        stage.crew.replace("run-starter")
        stage.recovered("the line of Kafka for drivers")
        for number in range(count):
            _cut(stage, line, stalled=number % 2 == 1)
        back(stage, "run-starter")
        stage.recovered("drivers without their line of Kafka")


def _cut(stage: Stage, line: Proxy, *, stalled: bool) -> None:
    before = stage.made.value(LOST)
    line.stall() if stalled else line.cut()
    stage.fault("stalled: Kafka for drivers" if stalled else "cut off: Kafka for drivers")
    stage.wait(CUT_SECONDS)
    assert stage.made.value(LOST) == before
    line.mend()
    stage.recovered("Kafka for drivers stalled" if stalled else "Kafka for drivers cut off")


def wait_lost(stage: Stage, before: int) -> None:
    """Wait until another attempt is lost."""
    until(lambda: stage.made.value(LOST) > before, "an attempt is lost", seconds=60)
