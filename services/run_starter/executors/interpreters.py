"""Which Python interpreter an attempt's driver runs, and the launches whose interpreter is not there yet."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from retrofill.domain.attempt import AttemptMode
from retrofill.driver.environment import VARIABLE
from retrofill.errors import first_line
from retrofill.user_code.environments import Environments, Packed, Unpacked
from retrofill.user_code.store import CannotUnpackHere, CodeUnavailable
from run_starter.executors import Condition, Host, Key, LaunchRequest, processes
from run_starter.executors.command import Drivers
from run_starter.executors.package import package

# That drivers start, without Spark, which spark-submit may bring. A package may hide a module of Python's.
CHECK = "import sys; sys.path.insert(0, sys.argv[1]); import retrofill.driver.serve"


@dataclass(frozen=True)
class Interpreter:
    """``environment``: variables for the driver; ``unpacked``: its packed environment, if it has one."""

    python: str
    environment: Mapping[str, str] = field(default_factory=dict)
    unpacked: Unpacked | None = None


class Interpreters:
    """The interpreters of a pool's drivers."""

    def __init__(self, drivers: Drivers) -> None:
        self._drivers = drivers
        inherited = processes.inherited(os.environ, drivers.withheld)
        check = ("-c", CHECK, str(package(drivers.settings.home)))
        self._environments = Environments(drivers.settings, drivers.python, check, inherited)

    def packed_of(self, launch: LaunchRequest) -> Packed | None:
        """What tells an attempt's interpreter from that of others: its packed environment, or none."""
        return self._drivers.packed_of(launch)

    def ready(self, packed: Packed | None) -> bool:
        """Whether ``get`` returns at once."""
        return packed is None or self._environments.ready(packed)

    def get(self, packed: Packed | None) -> Interpreter:
        """The interpreter, whose environment is unpacked if needed. Raises ``CodeUnavailable``."""
        if packed is None:
            return Interpreter(self._drivers.python)
        unpacked = self._environments.unpack(packed)
        return Interpreter(unpacked.python, {VARIABLE: str(unpacked.file)}, unpacked)


class Preparing:
    """Implements ``Executor`` for launches whose environment is being unpacked; ``then`` gets them afterwards."""

    def __init__(self, interpreters: Interpreters, host: Host, then: Callable[[LaunchRequest], None]) -> None:
        self._interpreters = interpreters
        self._host = host
        self._then = then
        self._lock = threading.RLock()
        # In order. Environments that are here have a thread.
        self._launches: dict[Packed, dict[Key, LaunchRequest]] = defaultdict(dict)
        # In a row, of this machine's own fault, and why the last one failed.
        self._failures = 0
        self._not_before = 0.0
        self._note: str | None = None

    def condition(self) -> Condition:
        """``submits``: whether launches are welcome. They are not for a while after this machine could not unpack."""
        return Condition(0, submits=time.monotonic() >= self._not_before, note=self._note)

    def waiting(self) -> list[LaunchRequest]:
        with self._lock:
            return [launch for launches in self._launches.values() for launch in launches.values()]

    def hosted(self) -> set[Key]:
        return {launch.key for launch in self.waiting()}

    def launch(self, launch: LaunchRequest) -> None:
        """Pass the launch on once its environment is unpacked, which is now if it already is."""
        packed = self._interpreters.packed_of(launch)
        # Any driver publishes.
        if packed is None or launch.mode == AttemptMode.PUBLISH or self._interpreters.ready(packed):
            self._then(launch)
            return
        with self._lock:
            is_first = packed not in self._launches
            self._launches[packed][launch.key] = launch
        if is_first:
            self._begin(packed)

    def _begin(self, packed: Packed) -> None:
        try:
            threading.Thread(target=self._prepare, args=(packed,), name="environment", daemon=True).start()
        except RuntimeError as e:
            self._release(packed, f"the environment {packed.sha256} cannot be unpacked: {e}")

    def end(self, key: Key) -> None:
        with self._lock:
            found = [launches.pop(key) for launches in self._launches.values() if key in launches]
        for launch in found:
            self._host.driver_ended(launch, reported=False, reason="ended before its environment was unpacked")

    def close(self) -> None:
        for launch in self.waiting():
            self.end(launch.key)

    def _prepare(self, packed: Packed) -> None:
        error = None
        try:
            self._interpreters.get(packed)
        except CannotUnpackHere as e:
            self._release(packed, str(e))
            return
        except CodeUnavailable as e:
            error = str(e)
        except Exception as e:  # noqa: BLE001 - without an answer, the launches would wait forever
            error = f"the environment {packed.sha256} cannot be unpacked: {type(e).__name__}: {first_line(e)}"
        # Under the lock, so that each launch is always hosted here or there.
        with self._lock:
            launches = self._launches.pop(packed).values()
            if error is None:
                self._failures, self._note = 0, None
                for launch in launches:
                    self._then(launch)
        if error is not None:
            for launch in launches:
                self._host.refused(launch, error, kind=CodeUnavailable.__name__)

    def _release(self, packed: Packed, reason: str) -> None:
        """Leave launches to other hosts, and to this one after a pause, which is longer each time."""
        with self._lock:
            launches = self._launches.pop(packed).values()
            self._failures += 1
            self._not_before = time.monotonic() + processes.pause(self._failures)
            self._note = reason
        for launch in launches:
            self._host.driver_ended(launch, reported=False, reason=reason)
