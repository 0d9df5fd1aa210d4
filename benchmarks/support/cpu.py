"""CPU time by part of an installation: what a run costs, however busy the machine is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import psutil
from tests.support.replica import Replica
from tests.support.user import is_driver

from benchmarks.core import Figure, figure
from retrofill_core.contract.topics import SERVICES
from retrofill_tools.stack.layout import Layout
from retrofill_tools.stack.processes import of_stack

_PACKAGES = {service.package: name for name, service in SERVICES.items()}


class Used:
    """CPU seconds so far of the servers, each service and the drivers, of the stack in ``home``.

    ``replicas``: services that were started beside it. ``drivers``: processes that drive its Spark without Retrofill.
    """

    def __init__(self, home: Path, replicas: Iterable[Replica] = (), drivers: Iterable[psutil.Process] = ()) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        identity = Layout(home).identity()
        assert identity is not None
        for process in of_stack(identity.id):
            self._add(process)
        for replica in replicas:
            starter = psutil.Process(replica.process.pid)
            for process in (starter, *starter.children(recursive=True)):
                self._add(process, replica.log.stem.rpartition("-")[0])
        for driver in drivers:
            times = driver.cpu_times()
            self.seconds["drivers"] += times.user + times.system

    def _add(self, process: psutil.Process, service: str = "others") -> None:
        command = process.cmdline()
        if process.name() == "postgres":
            # Its children overwrite the marker that it is found by. Those of former connections have
            # ended.
            there = [process.cpu_times(), *(each.cpu_times() for each in process.children(recursive=True))]
            self.seconds["Postgres"] += sum(sum(times[:4]) for times in there)
            return
        if process.name() == "java":
            part = "Kafka" if "kafka.Kafka" in command else "Spark"
        elif is_driver(process):
            part = "drivers"
        else:
            part = next((name for package, name in _PACKAGES.items() if package in command), service)
        times = process.cpu_times()
        self.seconds[part] += times.user + times.system
        # Drivers that were replaced.
        self.seconds["drivers"] += times.children_user + times.children_system

    def since(self, before: Used, runs: int) -> dict[str, float]:
        """Milliseconds of CPU of each of ``runs``, by part."""
        return {part: 1000 * (seconds - before.seconds[part]) / runs for part, seconds in self.seconds.items()}


def figures(what: str, repeats: list[dict[str, float]]) -> list[Figure]:
    """One figure of all parts together, and one of each part, the costliest first."""
    parts = sorted(repeats[0], key=lambda part: -sum(each.get(part, 0.0) for each in repeats))
    all_ = figure(f"CPU of {what}: all parts", "ms", [sum(each.values()) for each in repeats])
    return [
        all_,
        *(figure(f"CPU of {what}: {part}", "ms", [each.get(part, 0.0) for each in repeats]) for part in parts),
    ]
