"""Service faults: killed at a crash point, frozen, restarted, scaled; drivers killed."""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil

from retrofill_core.contract.topics import SERVICES
from tests.chaos.stage import Stage
from tests.support.installation import until
from tests.support.replica import Replica

REACH_SECONDS = 90.0
AT_WORK = "SELECT count(*) FROM attempt WHERE state = 'running'"


def kill_at_points(stage: Stage, points: dict[str, str]) -> None:
    """Kill one replica of each service at its crash point, all at once; the crew restarts them."""
    # Those of leases first: without the other services there may be no work.
    for name in sorted(points, key=lambda name: not points[name].startswith("lease:")):
        if points[name].startswith("lease:"):
            # Kill the hosts with their drivers while one is at work, so that there are leases left to expire.
            until(lambda: stage.made.value(AT_WORK) > 0, "a driver is at work", seconds=REACH_SECONDS)
            for replica in stage.crew.of(name):
                replica.kill()
        stage.crew.scale(name, 0)
    armed = {name: stage.crew.launch(name, RETROFILL_CRASH_POINT=point) for name, point in points.items()}

    def all_died() -> bool:
        for name in [name for name, replica in armed.items() if replica.process.poll() is not None]:
            replica = armed.pop(name)
            assert replica.process.returncode == -signal.SIGKILL, (name, points[name], replica.said()[-2000:])
            stage.fault(f"kill -9 of {name} at {points[name].partition('@')[0]}")
            # Scale down immediately: other services may be waiting for this one.
            stage.crew.scale(name, 1)
        return not armed

    until(
        all_died,
        "each service reaches its point",
        lambda: str({name: (points[name], replica.said()[-2000:]) for name, replica in armed.items()}),
        REACH_SECONDS,
    )
    for name in points:
        wait_past_deaths(stage, name)


def wait_past_deaths(stage: Stage, name: str) -> None:
    """Wait until the messages that replicas died of are handled: at a third death they would be set aside, as intended."""
    statement = f"""
    SELECT count(*) FROM {SERVICES[name].package}_shard AS s JOIN {SERVICES[name].package}_shard_offset AS o
    ON (o.partition, o.topic) = (s.partition, s.trying_topic) WHERE o.next_offset <= s.trying_offset
    """
    until(lambda: stage.made.value(statement) == 0, f"{name} is past what it died of", seconds=REACH_SECONDS)


def stop_at_a_point(stage: Stage, name: str, point: str) -> Replica:
    """Start the only replica of a service so that it stops itself (SIGSTOP) at a crash point."""
    stage.crew.scale(name, 0)
    stopped = stage.crew.launch(name, RETROFILL_CRASH_POINT=f"{point}:stop")
    until(stopped.is_stopped, f"{name} stands still at {point}", stopped.said, REACH_SECONDS)
    stage.fault(f"SIGSTOP of {name}")
    return stopped


def wait_succeeded_by_another(stage: Stage, name: str, former: Replica) -> None:
    """Wait until another replica owns every shard of ``former``."""
    statement = f"SELECT count(*) FROM {SERVICES[name].package}_shard WHERE owner LIKE %s"
    until(
        lambda: stage.made.value(statement, f"%-{former.process.pid}") == 0,
        f"{name} has another owner",
        seconds=REACH_SECONDS,
    )


def wait_relay_taken(stage: Stage, name: str, epoch: int) -> None:
    """Wait until another relay has taken over from ``epoch``."""
    statement = f"SELECT epoch FROM {SERVICES[name].package}_relay"
    until(lambda: stage.made.value(statement) > epoch, f"another relay of {name}", seconds=REACH_SECONDS)


def wait_says(replica: Replica, text: str) -> None:
    """Wait for ``text`` in a replica's log."""
    until(lambda: text in replica.said(), f"the log says {text}", lambda: replica.said()[-2000:], REACH_SECONDS)


def a_replica(stage: Stage, name: str) -> Replica:
    """A running replica of a service, once there is one: a fault without its victim would be no fault."""
    found: list[Replica] = []

    def there() -> bool:
        found[:] = stage.crew.of(name)
        return bool(found)

    until(there, f"there is a replica of {name}", seconds=REACH_SECONDS)
    return found[0]


def freeze_drivers(stage: Stage, kind: str) -> list[psutil.Process]:
    """SIGSTOP all drivers with the processes of their attempts, once there is one; returns the drivers that stand still."""
    frozen: list[psutil.Process] = []

    def stand_still() -> bool:
        for driver in drivers_of(stage):
            with suppress(psutil.NoSuchProcess):
                # It forks no more then.
                driver.suspend()
                for attempt in _children(driver.pid):
                    with suppress(psutil.NoSuchProcess):
                        attempt.suspend()
                stage.fault(kind)
                frozen.append(driver)
        return bool(frozen)

    until(stand_still, "there are drivers", seconds=REACH_SECONDS)
    return frozen


def thaw_drivers(drivers: list[psutil.Process]) -> None:
    """Resume those that their host has not killed."""
    for driver in drivers:
        with suppress(psutil.NoSuchProcess):
            for each in (*_children(driver.pid), driver):
                each.resume()


def kill_drivers(stage: Stage, count: int) -> int:
    """``kill -9`` up to ``count`` drivers; returns how many were killed. Fails if none appears."""
    until(lambda: bool(drivers_of(stage)), "there is a driver to kill", seconds=120)
    drivers = drivers_of(stage)
    killed = stage.chance.sample(drivers, min(count, len(drivers)))
    for driver in killed:
        driver.kill()
        stage.fault("kill -9 of a driver")
    return len(killed)


def drivers_of(stage: Stage) -> list[psutil.Process]:
    """The drivers of all run-starters."""
    return [
        child
        for replica in stage.crew.of("run-starter")
        for child in _children(replica.process.pid)
        if "tests.chaos.light_driver" in _command(child)
    ]


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []  # exited meanwhile


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # exited meanwhile
