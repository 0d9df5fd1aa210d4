"""A Spark Connect server in local mode."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from retrofill.settings import Settings
from retrofill.stack.java import spark_submit_command
from retrofill.stack.layout import SPARK, Layout


def prepare(layout: Layout, settings: Settings, java: Path, port: int) -> list[str]:
    """The command that runs the server."""
    data = layout.data(SPARK)
    # What a killed server left there is of no use to the next.
    shutil.rmtree(data / "local", ignore_errors=True)
    (data / "local").mkdir(parents=True, exist_ok=True)
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": data / "local",
        "spark.sql.warehouse.dir": data / "warehouse",
        # Many small jobs at once, each of a few files: shared fairly, without 200 shuffle partitions each.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": 4,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.driver.memory": settings.spark_driver_memory,
    }
    return [
        *spark_submit_command(
            java, [f"-Xmx{settings.spark_driver_memory}", "-XX:+UseSerialGC", f"-Dderby.system.home={data}"]
        ),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", f"local[{settings.spark_cores or os.cpu_count() or 2}]",
        "--name", "retrofill-connect",
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]  # fmt: skip
