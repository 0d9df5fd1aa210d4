"""Scenarios with service faults. The oracle checks the outcome."""

from __future__ import annotations

from collections.abc import Callable

from retrofill_core.contract.topics import SERVICES
from tests.chaos import faults
from tests.chaos.crew import NAMES
from tests.chaos.points import rounds
from tests.chaos.stage import Stage
from tests.support.installation import until

Scenario = Callable[[Stage], None]
SERVICE = "a service"
# Longer than the six seconds after which a dead service's partitions move.
FROZEN_SECONDS = 8.0


def kills(stage: Stage, count: int = 12) -> None:
    """``kill -9`` of services at random times."""
    for _ in range(count):
        stage.wait(stage.chance.uniform(0.3, 3.0))
        name = stage.chance.choice(NAMES)
        faults.a_replica(stage, name).kill()
        stage.fault(f"kill -9 of {name}")
    stage.recovered(f"{SERVICE} killed")


def crash_points(stage: Stage, count: int | None = None) -> None:
    """``kill -9`` all services at once at crash points: all points, or ``count`` random rounds."""
    for points in rounds(stage.chance, count):
        faults.kill_at_points(stage, points)
    stage.recovered(f"{SERVICE} killed at a point")


def freezes(stage: Stage, names: tuple[str, ...] = NAMES) -> None:
    """Freeze each service just before it writes, until it has a successor.

    Its late write must be refused.
    """
    for name in names:
        stopped = faults.stop_at_a_point(stage, name, "batch:before-begin")
        stage.crew.scale(name, 1)
        faults.wait_succeeded_by_another(stage, name, stopped)
        stopped.thaw()
        faults.wait_says(stopped, '"event": "fenced"')
        stage.recovered(f"{name} woken as a former owner")
        stopped.stop()


def relay_freezes(stage: Stage, names: tuple[str, ...] = NAMES) -> None:
    """Freeze each relay inside its Kafka transaction until it has a successor.

    Afterwards it must not publish or number anything.
    """
    for name in names:
        point = stage.chance.choice(["relay:numbered", "relay:kafka-begun", "relay:before-kafka-commit"])
        stopped = faults.stop_at_a_point(stage, name, point)
        epoch = stage.made.value(f"SELECT epoch FROM {SERVICES[name].package}_relay")
        stage.crew.scale(name, 1)
        faults.wait_relay_taken(stage, name, epoch)
        stopped.thaw()
        faults.wait_says(stopped, '"event": "relay_again"')
        stage.recovered(f"the relay of {name} woken late")
        stopped.stop()


def random_freezes(stage: Stage, count: int = 6) -> None:
    """SIGSTOP services that have a second replica, briefly or past the session timeout."""
    for name in NAMES:
        stage.crew.scale(name, 2)
    for _ in range(count):
        stage.wait(stage.chance.uniform(0.3, 2.0))
        name = stage.chance.choice(NAMES)
        replica = faults.a_replica(stage, name)
        replica.freeze()
        stage.fault(f"SIGSTOP of {name}")
        stage.wait(stage.chance.choice([1.0, FROZEN_SECONDS]))
        replica.thaw()
    stage.recovered(f"{SERVICE} woken")


def rolling(stage: Stage, count: int = 3) -> None:
    """Rolling restarts of all services under load."""
    for _ in range(count):
        for name in NAMES:
            faults.a_replica(stage, name)
            stage.crew.replace(name)
            stage.fault(f"restart of {name}")
            stage.wait(stage.chance.uniform(0.5, 2.0))
    stage.recovered(f"{SERVICE} restarted")


def _runs_go_on(stage: Stage) -> None:
    ended = stage.runs_ended()
    until(lambda: stage.runs_ended() > ended + 10, "runs go on", seconds=120)


def scaling(stage: Stage, most: int = 4) -> None:
    """Scale each service from one replica to ``most`` and back to one."""
    for number in (most, 1):
        for name in NAMES:
            stage.crew.scale(name, number)
            stage.fault(f"{name} scaled to {number}")
        _runs_go_on(stage)
        stage.recovered(f"{SERVICE} scaled to {number}")


def drivers(stage: Stage, count: int = 12) -> None:
    """``kill -9`` of drivers at work."""
    done = 0
    while done < count:
        stage.wait(stage.chance.uniform(0.2, 1.0))
        done += faults.kill_drivers(stage, stage.chance.randint(1, 2))
    stage.recovered("drivers killed")
