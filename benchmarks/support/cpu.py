"""CPU time by part of an installation: what a run costs, however busy the machine is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psutil
from tests.support.installation import Installation

from benchmarks.core import Figure, figure
from retrofill.stack.layout import Layout
from retrofill.stack.processes import of_stack


class Used:
    """CPU seconds so far of Kafka, Postgres, each service and the drivers."""

    def __init__(self, home: Path, made: Installation) -> None:
        self.seconds: Counter[str] = Counter()
        identity = Layout(home).identity()
        assert identity is not None
        for process in of_stack(identity.id):
            if process.name() == "java":
                self._add("Kafka", process)
            elif process.name() == "postgres":
                # Its children overwrite the marker that it is found by.
                self._add("Postgres", *{process, *process.children(recursive=True)})
        for replica in made.replicas:
            process = psutil.Process(replica.process.pid)
            self._add(replica.log.stem.rpartition("-")[0], process)
            self._add("drivers", *process.children(recursive=True))

    def _add(self, part: str, *processes: psutil.Process) -> None:
        for process in processes:
            times = process.cpu_times()
            self.seconds[part] += times.user + times.system
            # Of children that have ended: Postgres's connections, and drivers that were replaced.
            ended = part if part == "Postgres" else "drivers"
            self.seconds[ended] += times.children_user + times.children_system

    def since(self, before: Used, runs: int) -> dict[str, float]:
        """Milliseconds of CPU of each of ``runs``, by part."""
        return {part: 1000 * (seconds - before.seconds[part]) / runs for part, seconds in self.seconds.items()}


def figures(what: str, repeats: list[dict[str, float]]) -> list[Figure]:
    """One figure of each part, the costliest first, and one of all together."""
    parts = sorted(repeats[0], key=lambda part: -sum(each[part] for each in repeats))
    all_ = figure(f"CPU of a run, {what}: all parts", "ms", [sum(each.values()) for each in repeats])
    return [all_, *(figure(f"CPU of a run, {what}: {part}", "ms", [each[part] for each in repeats]) for part in parts)]
