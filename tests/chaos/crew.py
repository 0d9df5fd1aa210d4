"""Keeps replicas of all services running: like a supervisor, it restarts those that exit."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Self

from retrofill_core.contract.topics import SERVICES
from tests.support.installation import Installation
from tests.support.replica import Replica

WATCH_SECONDS = 0.1
NAMES = tuple(SERVICES)


class Crew:
    """Keeps ``count`` replicas of each service while entered.

    ``extra`` is additional environment by service.
    """

    def __init__(self, made: Installation, environment: Mapping[str, str], count: int = 1) -> None:
        self._made = made
        self._environment = dict(environment)
        self._extra: dict[str, dict[str, str]] = {name: {} for name in NAMES}
        self._wanted = dict.fromkeys(NAMES, count)
        self._replicas: dict[str, list[Replica]] = {name: [] for name in NAMES}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="crew", daemon=True)
        self.starts = 0
        self.deaths: list[tuple[str, int]] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._keep()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop restarting replicas. The installation ends those that still run."""
        self._stopping.set()
        self._thread.join()

    def of(self, name: str) -> list[Replica]:
        """Running replicas of a service."""
        with self._lock:
            return [each for each in self._replicas[name] if each.process.poll() is None]

    def scale(self, name: str, count: int) -> None:
        """Set the number of replicas; surplus ones are stopped."""
        with self._lock:
            self._wanted[name] = count
            extra = self._replicas[name][count:]
            del self._replicas[name][count:]
        for replica in extra:
            replica.stop()

    def equip(self, name: str, **environment: str) -> None:
        """Add environment to future replicas of a service. This cannot be undone."""
        with self._lock:
            self._extra[name] = environment

    def launch(self, name: str, **environment: str) -> Replica:
        """Start an unsupervised replica. The caller must stop it."""
        module = "light-starter" if name == "run-starter" else name
        with self._lock:
            self.starts += 1
            return self._made.start(module, {**self._environment, **self._extra[name], **environment}, wait=False)

    def replace(self, name: str) -> None:
        """Rolling restart: stop and replace the replicas one by one."""
        for replica in self.of(name):
            with self._lock:
                if replica in self._replicas[name]:
                    self._replicas[name].remove(replica)
            replica.stop()

    def _watch(self) -> None:
        try:
            while not self._stopping.wait(WATCH_SECONDS):
                self._keep()
        except BaseException as e:
            self.error = e
            raise

    def _keep(self) -> None:
        with self._lock:
            for name in NAMES:
                for replica in [each for each in self._replicas[name] if each.process.poll() is not None]:
                    self.deaths.append((name, replica.process.wait()))
                    self._replicas[name].remove(replica)
                while len(self._replicas[name]) < self._wanted[name]:
                    self._replicas[name].append(self.launch(name))
