"""Commands for a Spark standalone cluster from the wheel: master and workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from retrofill.spark.java import java_home, spark_command, spark_jars

SCALA = "2.13"
# Fail if the port is in use: on the next port, clients would not find it.
DAEMON_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-Dspark.port.maxRetries=0")


def master_command(java: Path, host: str, port: int, web_port: int) -> list[str]:
    """The command for a master that listens on ``host``.

    It publishes its state at ``/json/`` on ``web_port``.
    """
    main = "org.apache.spark.deploy.master.Master"
    # No drivers are submitted over REST.
    options = [*DAEMON_OPTIONS, "-Dspark.master.rest.enabled=false"]
    address = ["--host", host, "--port", str(port), "--webui-port", str(web_port)]
    return [*spark_command(java, main, options), *address]


def worker_command(java: Path, master: str, host: str, work: Path, cores: int, memory: str, web_port: int) -> list[str]:
    """The command for a worker of ``master`` (spark://host:port).

    ``cores`` and ``memory`` (like 1g) are the totals for its executors; ``web_port`` 0 means any.
    """
    main = "org.apache.spark.deploy.worker.Worker"
    offer = ["--cores", str(cores), "--memory", memory, "--work-dir", str(work)]
    return [*spark_command(java, main, DAEMON_OPTIONS), "--host", host, "--webui-port", str(web_port), *offer, master]


def environment(java: Path, folder: Path) -> Mapping[str, str]:
    """Environment variables that a worker needs to start executors; ``folder`` must be writable."""
    return {
        "SPARK_HOME": str(spark_jars().parent),
        # Otherwise Spark looks for it in directories that only its source tree has.
        "SPARK_SCALA_VERSION": SCALA,
        "JAVA_HOME": str(java_home(java, folder)),
    }
