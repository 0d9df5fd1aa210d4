"""Chooses the Python interpreter of an attempt's driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from retrofill.driver.environment import VARIABLE
from retrofill_core.driver_package import package
from retrofill_core.user_code.environments import Environments, Packed, Unpacked
from run_starter.executors import LaunchRequest, processes
from run_starter.executors.command import Drivers

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
