"""Samples the services' memory during a scenario."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Self

import psutil

from tests.chaos.crew import NAMES, Crew

EVERY_SECONDS = 0.5
MB = 1_000_000


class Memory:
    """Resident memory in MB by service: each sample is that of the largest replica."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self.samples: dict[str, list[float]] = defaultdict(list)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_SECONDS):
            for name in NAMES:
                used = [_resident(replica.process.pid) for replica in self._crew.of(name)]
                if used:
                    self.samples[name].append(max(used))


def _resident(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss) / MB
    except psutil.Error:
        return 0.0
