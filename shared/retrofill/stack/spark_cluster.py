"""Spark's own standalone cluster out of the wheel, without its scripts: a master, and workers that start executors."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from retrofill.java import spark_command, spark_jars

SCALA = "2.13"
VECTOR = "jdk.incubator.vector"
# A port that is taken ends it: where it would go on with the next one, nobody would find it.
DAEMON_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-Dspark.port.maxRetries=0")
# Spark asks every executor's Java for this module, for MLlib only; a Java that has none does not start with that option.
WITHOUT_VECTOR = f"""#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
    [ "$1" = --add-modules={VECTOR} ] || set -- "$@" "$1"
    shift
    n=$((n - 1))
done
exec "{{java}}" "$@"
"""


def master_command(java: Path, host: str, port: int, web_port: int) -> list[str]:
    """A master that listens on ``host``; what it knows is at ``/json/`` of ``web_port``."""
    main = "org.apache.spark.deploy.master.Master"
    # Nobody submits drivers to it: no port for that.
    options = [*DAEMON_OPTIONS, "-Dspark.master.rest.enabled=false"]
    address = ["--host", host, "--port", str(port), "--webui-port", str(web_port)]
    return [*spark_command(java, main, options), *address]


def worker_command(java: Path, master: str, host: str, work: Path, cores: int, memory: str, web_port: int) -> list[str]:
    """A worker of the ``master`` (spark://host:port), which gives its executors ``cores`` and ``memory`` (as 1g) in all.

    ``web_port`` 0 is any.
    """
    main = "org.apache.spark.deploy.worker.Worker"
    offer = ["--cores", str(cores), "--memory", memory, "--work-dir", str(work)]
    return [*spark_command(java, main, DAEMON_OPTIONS), "--host", host, "--webui-port", str(web_port), *offer, master]


def environment(java: Path, folder: Path) -> Mapping[str, str]:
    """What a worker needs to start executors; ``folder`` is one that it may write."""
    return {
        "SPARK_HOME": str(spark_jars().parent),
        # Where this is not told, Spark looks for it in folders that only its sources have.
        "SPARK_SCALA_VERSION": SCALA,
        "JAVA_HOME": str(_home(java, folder)),
    }


def _home(java: Path, folder: Path) -> Path:
    """A Java home whose ``bin/java`` starts executors."""
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=30, check=True).stdout
    if VECTOR in modules:
        return java.resolve().parent.parent
    launcher = folder / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(WITHOUT_VECTOR.format(java=java.absolute()))
    launcher.chmod(0o755)
    return launcher.parent.parent
