"""Command line and environment of a pool's drivers, and the Python interpreter of an attempt's."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import SecretStr

from retrofill.driver.config import Config
from retrofill.spark.home import ENVIRONMENT_VARIABLE
from retrofill.spark.java import bundled
from retrofill_core.driver_package import package
from retrofill_core.pools import Pool, Source, pools_of, settings_of
from retrofill_core.settings import NotConfigured, Settings
from retrofill_core.user_code.environments import Environments, Packed, Unpacked
from run_starter.executors import Condition, LaunchRequest, processes

# Shorter ones are no secrets, and masking them would make logs unreadable.
MIN_MASKED = 4
MAX_VERSION = 100


@dataclass(frozen=True)
class Drivers:
    """``environment``: variables in addition to those that drivers inherit, ``withheld`` from which some are."""

    settings: Settings = field(repr=False)
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    withheld: frozenset[str] = frozenset()
    # Those whose values are masked.
    secrets: frozenset[str] = frozenset()
    session_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Of attempts whose pipeline has none.
    packed: Packed | None = None

    def packed_of(self, launch: LaunchRequest) -> Packed | None:
        """The packed environment of an attempt's driver; ``None``: it needs no more than ``python``."""
        own = launch.pipeline.code.environment
        # Tables are published by the pyspark that has staged them.
        if own is None or launch.only_files:
            return self.packed
        return Packed(own.sha256, own.python)


def drivers_of(settings: Settings, name: str, environment: Mapping[str, str] | None = None) -> Drivers:
    """The drivers of a pool, with the values of their variables from files and from ``environment``.

    Raises ``NotConfigured`` if a value cannot be had, or its interpreter does not exist.
    """
    inherited = os.environ if environment is None else environment
    pools = pools_of(settings)
    pool = pools[name]
    secrets = {variable: _value(name, variable, source, inherited) for variable, source in pool.sources.items()}
    own = settings_of(settings, name)
    own = own.model_copy(update={"redact": (*own.redact, *masks(secrets.values()))})
    values = {name: each.get_secret_value() for name, each in pool.env.items() if isinstance(each, SecretStr)} | secrets
    if own.spark_home is not None:
        values["SPARK_HOME"] = str(own.spark_home)
    return Drivers(
        own,
        _python(name, pool),
        values,
        # A variable may be the source of another pool's secret.
        frozenset(source.variable for each in pools.values() for source in each.sources.values() if source.variable),
        frozenset(secrets),
        pool.session_conf,
        _packed(pool),
    )


def told(settings: Settings, master: str | None = None) -> dict[str, Any]:
    """The ``settings`` message to a driver (``retrofill.driver.config``).

    ``master``: of the cluster in which the driver runs. Folders and files of this machine are not there,
    and the driver's Spark is its own.
    """
    given = settings.model_dump(mode="json", include={each.name for each in fields(Config)})
    if master is not None:
        return {**given, "spark_submit_master": master, "spark_remote": None, "spark_home": None, "java_home": None}
    return {**given, "bundled_java": None if (java := bundled()) is None else str(java)}


def masks(values: Iterable[str]) -> tuple[str, ...]:
    """Patterns that match these values, line by line, also as JSON, URLs and HTML write them."""
    lines = dict.fromkeys(line.strip() for value in values for line in value.splitlines())
    # Longer ones first: one may be part of another.
    masked = sorted((line for line in lines if len(line) >= MIN_MASKED), key=len, reverse=True)
    return tuple("".join(map(_written, line)) for line in masked)


def _written(character: str) -> str:
    """A pattern of the ways in which a character is written in other texts."""
    if character.isascii() and character.isalnum():
        return character
    in_url = "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
    units = character.encode("utf-16-be", "surrogatepass").hex()
    in_json = "".join(rf"\\\\?u{units[n : n + 4]}" for n in range(0, len(units), 4))
    # That of HTML first, because it may begin with the character itself.
    ways = [re.escape(html.escape(character)), f"(?i:{in_url}|{in_json})", rf"\\{{0,3}}{re.escape(character)}"]
    if character == " ":
        ways.append(r"\+")
    return f"(?:{'|'.join(ways)})"


def versions(ready: Any) -> Condition:
    """The versions of Python and Spark that a driver names when it is ready. Raises ``AttributeError``."""
    said = {} if ready is True else ready
    python, spark = (None if said.get(name) is None else str(said[name])[:MAX_VERSION] for name in ("python", "spark"))
    return Condition(0, python=python, spark=spark)


def _value(pool: str, name: str, source: Source, environment: Mapping[str, str]) -> str:
    where = f"pool {pool}: the value of {name}"
    if source.file is not None:
        try:
            return source.file.read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as e:
            why = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
            raise NotConfigured("RETROFILL_POOLS", f"{where} cannot be read from {source.file}: {why}") from None
    value = environment.get(source.variable or "")
    if value is None:
        raise NotConfigured("RETROFILL_POOLS", f"{where} comes from the variable {source.variable}, which is not set")
    return value


def _python(name: str, pool: Pool) -> str:
    if pool.driver_python is None:
        return sys.executable
    if not os.access(pool.driver_python, os.X_OK):
        raise NotConfigured(
            "RETROFILL_POOLS", f"pool {name}: {pool.driver_python} cannot be executed: set driver_python"
        )
    return str(pool.driver_python)


def _packed(pool: Pool) -> Packed | None:
    given = pool.driver_environment
    return None if given is None else Packed(given.sha256, address=given.address)


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
        return Interpreter(unpacked.python, {ENVIRONMENT_VARIABLE: str(unpacked.file)}, unpacked)
