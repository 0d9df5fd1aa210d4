"""A Hive metastore as a server of its own, of another release than the client that Spark brings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from retrofill.spark import java
from retrofill.spark.java import spark_jars
from retrofill_core.settings import Settings
from retrofill_tools.stack.maven import Artifact
from retrofill_tools.stack.ports import answers, held_port
from tests.support.installation import until
from tests.support.lake import POSTGRES_DRIVER
from tests.support.maven import jar, jars

METASTORE = Artifact("org.apache.hive", "hive-standalone-metastore", "3.1.3", "70 MB", whole=True)
START_SECONDS = 240.0
# Older ones that it depends on do not know the version numbers of today's Java.
HADOOP = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "log4j-api-*.jar", "log4j-core-*.jar")


@contextmanager
def metastore(home: Path, dsn: str) -> Iterator[str]:
    """The address of a metastore whose tables are in Postgres."""
    of = conninfo_to_dict(dsn)
    settings: dict[str, Any] = {
        "javax.jdo.option.ConnectionURL": f"jdbc:postgresql://{of['host']}:{of['port']}/{of['dbname']}",
        "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
        "javax.jdo.option.ConnectionUserName": of["user"],
        "javax.jdo.option.ConnectionPassword": of.get("password") or "",
        "datanucleus.schema.autoCreateAll": "true",
        "metastore.schema.verification": "false",
        # The defaults are in Hive's own program.
        "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
        "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
        "metastore.warehouse.dir": f"{home}/warehouse",
        "metastore.thrift.port": "",
    }
    ours = [each for pattern in HADOOP for each in spark_jars().glob(pattern)]
    with held_port() as port:
        settings["metastore.thrift.port"] = str(port)
        properties = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
        )
        (home / "metastore-site.xml").write_text(f"<configuration>{properties}</configuration>")
        path: list[Path] = [home, *ours, jar(POSTGRES_DRIVER), *jars(METASTORE)]
        command: list[str | Path] = [java.find(Settings()), "-Xmx512m", "-cp", ":".join(map(str, path))]
        log = home / "metastore.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)],
                stdout=out,
                stderr=out,
                cwd=home,
                env={"METASTORE_HOME": str(home), "METASTORE_CONF_DIR": str(home), "PATH": "/usr/bin:/bin"},
            )
    try:
        until(
            lambda: answers(port) or process.poll() is not None,
            "the metastore listens",
            lambda: log.read_text()[-3000:],
            START_SECONDS,
        )
        assert process.poll() is None, log.read_text()[-3000:]
        yield f"thrift://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
