"""The embedded Spark Connect server, in local mode or on a cluster, and a standalone cluster from the wheel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrofill.spark.home import SparkHome
from retrofill.spark.java import java_home, spark_command, spark_jars, spark_submit_command, with_jars, write_properties
from retrofill_core.settings import Settings
from retrofill_tools.stack.layout import SPARK, Layout
from retrofill_tools.stack.maven import Artifact, Maven

EXTENSIONS = "spark.sql.extensions"
# Prefixes of the server's settings that scripts need to find the same tables.
_OF_TABLES = ("spark.sql.", "spark.hadoop.", "spark.jars", "spark.databricks.")


@dataclass(frozen=True)
class TableFormat:
    """``artifacts``: all jars that Spark does not bring, by a name for people."""

    artifacts: dict[str, Artifact]
    extension: str
    conf: dict[str, str] = field(default_factory=dict)


# Of the newest Spark that both are published for.
FORMATS = {
    "iceberg": TableFormat(
        {"Iceberg": Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0", "48 MB")},
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    ),
    "delta": TableFormat(
        {
            "Delta": Artifact("io.delta", "delta-spark_4.1_2.13", "4.4.0", "9 MB"),
            "Delta-storage": Artifact("io.delta", "delta-storage", "4.4.0", "0.1 MB"),
        },
        "io.delta.sql.DeltaSparkSessionExtension",
        {
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # Fifty tasks to read the log of a small table take longer than the rest of a commit.
            "spark.databricks.delta.snapshotPartitions": "2",
        },
    ),
}


def with_tables(conf: Mapping[str, str], formats: Sequence[str], maven: Maven) -> dict[str, str]:
    """The settings ``conf`` of a Spark that has these formats too. Raises ``FetchFailed``."""
    conf = dict(conf)
    jars: list[str] = []
    for chosen in (FORMATS[name] for name in formats):
        for name, artifact in chosen.artifacts.items():
            jars.append(str(maven.fetch(name, artifact) / artifact.jar))
        conf = {**chosen.conf, **conf}
        conf[EXTENSIONS] = ",".join(filter(None, [conf.get(EXTENSIONS), chosen.extension]))
    return with_jars(conf, jars)


def of_scripts(settings: Settings, maven: Maven) -> dict[str, str]:
    """Spark settings by which the stack's scripts find the tables of its Spark Connect server. Raises ``FetchFailed``.

    None for another Spark, which these jars may not fit, or which has a configuration or a cluster of its own.
    """
    home = SparkHome.of(settings)
    if home.variable is not None or home.defaults or not home.master.startswith("local"):
        return {}
    conf = with_tables(settings.spark_conf, settings.spark_tables, maven)
    return {name: value for name, value in conf.items() if name.startswith(_OF_TABLES)}


def prepare(layout: Layout, settings: Settings, maven: Maven, port: int) -> list[str]:
    """The command of the server. Raises ``FetchFailed`` if jars cannot be downloaded."""
    data = layout.data(SPARK)
    # Left over from a killed server.
    shutil.rmtree(data / "local", ignore_errors=True)
    (data / "local").mkdir(parents=True, exist_ok=True)
    # Session directories go there too, so that they are also removed.
    temporary = f"-Djava.io.tmpdir={data / 'local'}"
    conf = with_tables(settings.spark_conf, settings.spark_tables, maven)
    settings = settings.model_copy(update={"spark_conf": conf})
    return connect_command(settings, maven.java, data, "127.0.0.1", port, temporary)


def connect_command(
    settings: Settings, java: Path, data: Path, address: str, port: int, *java_options: str
) -> list[str]:
    """The command for a server that listens on ``address`` and keeps its files in ``data``."""
    conf = {
        "spark.connect.grpc.binding.address": address,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": address,
        "spark.ui.enabled": "false",
        "spark.local.dir": str(data / "local"),
        "spark.sql.warehouse.dir": str(data / "warehouse"),
        # Tuned for many small concurrent jobs with few files each.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.driver.memory": settings.spark_driver_memory,
        **settings.spark_conf,
    }
    options = ["-XX:+UseSerialGC", f"-Dderby.system.home={data}", *java_options]
    data.mkdir(parents=True, exist_ok=True)
    return [
        *spark_submit_command(java, data / "jvm.options", options, conf),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", settings.spark_master or f"local[{settings.spark_cores or os.cpu_count() or 2}]",
        "--name", "retrofill-connect",
        *write_properties(data / "spark.properties", conf), "--load-spark-defaults",
        "spark-internal",
    ]  # fmt: skip


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


def worker_environment(java: Path, folder: Path) -> Mapping[str, str]:
    """Environment variables that a worker needs to start executors; ``folder`` must be writable."""
    return {
        "SPARK_HOME": str(spark_jars().parent),
        # Otherwise Spark looks for it in directories that only its source tree has.
        "SPARK_SCALA_VERSION": SCALA,
        "JAVA_HOME": str(java_home(java, folder)),
    }
