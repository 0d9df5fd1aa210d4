"""Spark's own spark-submit, of ``SPARK_HOME`` or of pyspark, the configuration beside it, and the Python that executors run."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Iterator, Mapping, Protocol
from urllib.parse import urlsplit

from retrofill.errors import NotConfigured
from retrofill.spark import java

_KEY = re.compile(r"(?:\\.|[^\\=:\s])*")
_SEPARATOR = re.compile(r"\s*[=:]?\s*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_MEANS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


# This machine, whatever its name.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOCAL = "local[1]"
MASTER = "spark.master"
PYTHON, DRIVER_PYTHON = "spark.pyspark.python", "spark.pyspark.driver.python"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


class SparkChoice(java.JavaChoice, Protocol):
    """What says which Spark to use, and how: the settings, or a driver's part of them."""

    @property
    def spark_home(self) -> Path | None: ...
    @property
    def spark_submit_master(self) -> str | None: ...
    @property
    def spark_submit_conf(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class SparkHome:
    """The Spark whose spark-submit is used. ``variable`` names its folder; without one it is pyspark's."""

    settings: SparkChoice
    folder: Path
    variable: str | None
    # Of the drivers that it starts.
    python: str = sys.executable

    @classmethod
    def of(cls, settings: SparkChoice, python: str = sys.executable) -> SparkHome:
        """That of ``RETROFILL_SPARK_HOME``, else of ``SPARK_HOME``, else the one in pyspark."""
        if settings.spark_home is not None:
            return cls(settings, settings.spark_home.absolute(), "RETROFILL_SPARK_HOME", python)
        if given := os.environ.get("SPARK_HOME"):
            return cls(settings, Path(given).absolute(), "SPARK_HOME", python)
        return cls(settings, java.spark_jars(python).parent, None, python)

    @cached_property
    def defaults(self) -> Mapping[str, str]:
        """The settings of ``spark-defaults.conf``. Raises ``NotConfigured`` if it cannot be read."""
        file = Path(os.environ.get("SPARK_CONF_DIR") or self.folder / "conf", "spark-defaults.conf")
        try:
            found = read_properties(file.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or "it is not UTF-8"
            raise NotConfigured(
                "SPARK_CONF_DIR", f"{file} cannot be read: {why}: make it readable for Retrofill"
            ) from e
        return {name: value.strip() for name, value in found.items() if name.startswith("spark.")}

    @property
    def master(self) -> str:
        """The setting, else that of ``spark-defaults.conf``, else local mode."""
        of_defaults = self.defaults.get(MASTER)
        return self.settings.spark_submit_master or of_defaults or LOCAL

    @property
    def _has_scripts(self) -> bool:
        """Whether Spark's own scripts are used: only they read ``spark-env.sh``, and YARN needs what they set."""
        return self.variable is not None or bool(os.environ.get("SPARK_CONF_DIR")) or self.master == "yarn"

    def command(self, conf: Mapping[str, str], folder: Path, deploy_mode: str) -> list[str]:
        """spark-submit with these settings, which are complete: it reads no other file.

        They may be secrets, so they go into private files in ``folder``, not into the process list.
        """
        conf = {name: value for name, value in conf.items() if name not in (MASTER, "spark.submit.deployMode")}
        of_jvm = conf if deploy_mode == "client" else {}
        if self._has_scripts:
            start = [str(self.folder / "bin" / "spark-submit")]
            if options := shlex.split(of_jvm.get(_JAVA_OPTIONS, "")):
                # Spark's launcher passes them to the driver's JVM, which reads the file.
                (conf[_JAVA_OPTIONS],) = java.write_options(folder / "jvm.options", options)
        else:
            # Without the scripts' second JVM, and with pyspark as it is installed instead of its zip.
            start = java.spark_submit_command(
                java.find(self.settings), folder / "jvm.options", conf=of_jvm, jars=self.folder / "jars"
            )
        where = ("--master", self.master, "--deploy-mode", deploy_mode)
        return [*start, *where, *java.write_properties(folder / "spark.properties", conf)]

    def python_of_driver(self, conf: Mapping[str, str]) -> dict[str, str]:
        """A driver beside its host has the Python of its pool, unless ``conf`` names another."""
        return {} if PYTHON in conf or DRIVER_PYTHON in conf else {DRIVER_PYTHON: self.python}

    def environment(self, folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables for spark-submit, besides ``environment``. ``spark-env.sh`` may replace them.

        ``folder``: for a launcher of Java, if it needs one.
        """
        found = java.loopback_only(self.master, environment)
        if "PYSPARK_PYTHON" not in environment or self.python != sys.executable:
            found["PYSPARK_PYTHON"] = self.python
        if self._has_scripts:
            found["SPARK_HOME"] = str(self.folder)
            if self.variable is None or self.settings.java_home is not None:
                # A Spark of the user's finds its Java by itself.
                found["JAVA_HOME"] = str(java.java_home(java.find(self.settings), folder))
        return found


def read_properties(text: str) -> dict[str, str]:
    """The properties in the text, by name. As in Java, of two with one name the later counts."""
    found = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        found[_plain(key.group())] = _plain(line[separator.end() :])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones, each joined with those that continue it."""
    waiting = ""
    for line in re.split(r"\r\n|\r|\n", text):
        part = line.lstrip(" \t\f")
        if not waiting and (not part or part[0] in "#!"):
            continue
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2:
            waiting += part[:-1]
            continue
        yield waiting + part
        waiting = ""
    if waiting:
        yield waiting


def _plain(text: str) -> str:
    plain = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _MEANS.get(m[2], m[2]), text)
    # Java escapes units of UTF-16, of which some characters have two.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# The file of a driver's packed environment, on its machine. The interpreter of the driver is that of the environment.
ENVIRONMENT_VARIABLE = "RETROFILL_DRIVER_ENVIRONMENT"
FILES = "spark.files"
# Of a session. Drivers of others are not affected.
SESSION_PYTHON = "spark.sql.execution.pyspark.python"


def packed_file() -> Path | None:
    """The packed environment of this driver, if it has one."""
    file = os.environ.get(ENVIRONMENT_VARIABLE)
    return None if not file else Path(file)


def with_environment(conf: Mapping[str, str], master: str, python: str, file: Path) -> dict[str, str]:
    """Spark settings for an application whose driver runs ``python``, and its executors the file.

    They replace what ``conf`` says of Python. A file is executed with the Python that it was packed
    for, which is on each machine's PATH. Executors of local mode have no folder of their own, and
    need none: the driver's interpreter is there.
    """
    if master.startswith("local"):
        return {**conf, PYTHON: python, DRIVER_PYTHON: python}
    files = ",".join(filter(None, [conf.get(FILES), str(file)]))
    return {**conf, FILES: files, PYTHON: f"./{file.name}", DRIVER_PYTHON: python}


def give(session: Any, remote: str, file: Path) -> None:
    """Make the executors of a Connect session run the environment."""
    if _are_here(session, remote):
        python = sys.executable
    else:
        session.addArtifacts(str(file), file=True)
        # Spark starts the workers of a session in the folder with its artifacts.
        python = f"./{file.name}"
    session.conf.set(SESSION_PYTHON, python)


def _are_here(session: Any, remote: str) -> bool:
    """Whether the session's executors run on this machine, and not only behind a port of it."""
    if urlsplit(remote).hostname not in LOOPBACK or not session.conf.get("spark.master").startswith("local"):
        return False
    return session.conf.get("spark.driver.host") in (*LOOPBACK, socket.gethostname(), socket.getfqdn())
