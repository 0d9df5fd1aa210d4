"""The Spark Connect server of an interpreter's pyspark."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from retrofill.spark import java
from retrofill.spark.java import pyspark
from retrofill_core.settings import Settings
from retrofill_tools.stack.maven import Artifact
from retrofill_tools.stack.ports import answers, held_port
from tests.support.installation import until
from tests.support.maven import jar

HERE = "127.0.0.1"
START_SECONDS = 240.0


@contextmanager
def connect_server(python: str, home: Path) -> Iterator[str]:
    """Run it for the duration of the block; yields its address. Raises ``FetchFailed``."""
    spark = pyspark(python)
    assert spark is not None, f"{python} has no pyspark"
    log = home / "connect-server.log"
    conf = {
        "spark.connect.grpc.binding.address": HERE,
        "spark.driver.host": HERE,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_IP": HERE,
        "PYSPARK_PYTHON": python,
        "JAVA_HOME": str(java.java_home(java.find(Settings()), home)),
    }
    with ExitStack() as held:
        port = held.enter_context(held_port())
        conf["spark.connect.grpc.binding.port"] = str(port)
        command = [
            *(str(spark / "bin" / "spark-submit"), "--master", "local[2]"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            *_jars(spark),
            "spark-internal",
        ]
        with log.open("wb") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=home)
        try:
            until(
                lambda: answers(port) or server.poll() is not None,
                "Spark Connect listens",
                lambda: log.read_text()[-2000:],
                START_SECONDS,
            )
            assert server.poll() is None, log.read_text()[-2000:]
            held.close()
            yield f"sc://{HERE}:{port}"
        finally:
            server.terminate()
            server.wait(60)


def _jars(spark: Path) -> list[str]:
    """Spark 3.5 does not contain its Connect server."""
    if any((spark / "jars").glob("spark-connect_*.jar")):
        return []
    (core,) = (spark / "jars").glob("spark-core_*.jar")
    scala, version = core.stem.removeprefix("spark-core_").split("-", 1)
    return ["--jars", str(jar(Artifact("org.apache.spark", f"spark-connect_{scala}", version, "13 MB")))]
