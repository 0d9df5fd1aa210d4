"""Faults of services: killed at a point, frozen, restarted one by one, scaled; drivers killed."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from retrofill.contract.topics import SERVICES
from tests.chaos.stage import Stage
from tests.support.installation import Replica, until

REACH_SECONDS = 90.0


def kill_at_points(stage: Stage, points: dict[str, str]) -> None:
    """One replica of each service that dies at its point, all at the same time; then the crew starts the next."""
    for name in points:
        if points[name].startswith("lease:"):
            # Only drivers that are gone with their host leave leases to end.
            for replica in stage.crew.of(name):
                replica.kill()
        stage.crew.scale(name, 0)
    armed = {name: stage.crew.launch(name, RETROFILL_CRASH_POINT=point) for name, point in points.items()}

    def all_died() -> bool:
        for name in [name for name, replica in armed.items() if replica.process.poll() is not None]:
            replica = armed.pop(name)
            assert replica.process.returncode == -signal.SIGKILL, (name, points[name], replica.said()[-2000:])
            stage.fault(f"kill -9 of {name} at {points[name].partition('@')[0]}")
            # At once: the others may wait for what this one does.
            stage.crew.scale(name, 1)
        return not armed

    until(
        all_died,
        "each service reaches its point",
        lambda: str({name: (points[name], replica.said()[-2000:]) for name, replica in armed.items()}),
        REACH_SECONDS,
    )


def stop_at_a_point(stage: Stage, name: str, point: str) -> Replica:
    """The only replica of a service stops itself at a point (SIGSTOP)."""
    stage.crew.scale(name, 0)
    stopped = stage.crew.launch(name, RETROFILL_CRASH_POINT=f"{point}:stop")
    until(lambda: is_stopped(stopped), f"{name} stands still at {point}", stopped.said, REACH_SECONDS)
    stage.fault(f"SIGSTOP of {name}")
    return stopped


def is_stopped(replica: Replica) -> bool:
    """Whether a process has stopped. Fails where it has ended."""
    assert replica.process.poll() is None, replica.said()
    stat = Path(f"/proc/{replica.process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def wait_succeeded_by_another(stage: Stage, name: str, former: Replica) -> None:
    """Wait until none of the shards is the former owner's."""
    statement = f"SELECT count(*) FROM {SERVICES[name].package}_shard WHERE owner LIKE %s"
    until(
        lambda: stage.made.value(statement, f"%-{former.process.pid}") == 0,
        f"{name} has another owner",
        seconds=REACH_SECONDS,
    )


def wait_relay_taken(stage: Stage, name: str, epoch: int) -> None:
    """Wait until another relay took over."""
    statement = f"SELECT epoch FROM {SERVICES[name].package}_relay"
    until(lambda: stage.made.value(statement) > epoch, f"another relay of {name}", seconds=REACH_SECONDS)


def wait_says(replica: Replica, text: str) -> None:
    """Wait for a line of a replica's log."""
    until(lambda: text in replica.said(), f"the log says {text}", lambda: replica.said()[-2000:], REACH_SECONDS)


def kill_drivers(stage: Stage, count: int) -> int:
    """``kill -9`` of drivers that are there, as many as ``count``; returns how many there were."""
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
        return []  # it ended this moment


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # it ended this moment
