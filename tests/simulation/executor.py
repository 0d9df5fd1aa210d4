"""The simulated executor: hosts simulated drivers, whose processes take a while to start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from run_starter.executors import Condition, Host, Key, LaunchRequest
from tests.simulation.drivers import Driver
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class SimulatedExecutor:
    """Hosts the simulated drivers of a pool, each in its own simulated process."""

    world: World
    process: Process
    pool: str
    slots: int
    host: Host | None = None
    drivers: dict[Key, Driver] = field(default_factory=dict)
    # Launches that wait for a driver: one that has reported its end, or one that starts.
    _waiting: dict[Key, LaunchRequest] = field(default_factory=dict)
    # Processes that are not ready.
    starting: int = 0

    def condition(self) -> Condition:
        """Processes that start again after their driver died are not ready yet."""
        return Condition(self.slots - self.starting)

    def hosted(self) -> set[Key]:
        """Attempts whose drivers run here, or are about to."""
        return {*self.drivers, *self._waiting}

    def waiting(self) -> list[LaunchRequest]:
        return list(self._waiting.values())

    def launch(self, launch: LaunchRequest) -> None:
        self.world.oracle.hosts.launched(self.process, self.pool, launch)
        self._waiting[launch.key] = launch
        self._assign()

    def left(self, key: Key, *, stays: bool) -> None:
        """A driver has gone. Its process is replaced unless it stays."""
        self.drivers.pop(key)
        if not stays:
            self.starting += 1
            self.world.scheduler.spawn(self.process, "a driver starts", self._replace)
        self._assign()

    def _replace(self) -> None:
        scheduler = self.world.scheduler
        scheduler.wait(object(), scheduler.random.random() * self.world.start_seconds)
        self.starting -= 1
        assert self.host is not None
        self.host.changed()
        self._assign()

    def _assign(self) -> None:
        while self._waiting and len(self.drivers) < self.slots - self.starting:
            key = next(iter(self._waiting))
            driver = Driver(self, self._waiting.pop(key))
            self.drivers[key] = driver
            driver.start()

    def end(self, key: Key) -> None:
        """Kill one driver."""
        if (launch := self._waiting.pop(key, None)) is not None:
            assert self.host is not None
            self.host.driver_ended(launch, reported=False, reason="ended before a driver was given it")
        driver = self.drivers.get(key)
        if driver is not None:
            driver.die("ended by its host")

    def close(self) -> None:
        """Kill all drivers."""
        for key in list(self._waiting):
            self.end(key)
        for driver in list(self.drivers.values()):
            driver.die("the run-starter stopped")
        while self.drivers:
            # Until they are reported.
            self.world.scheduler.wait(object(), 0.01)
