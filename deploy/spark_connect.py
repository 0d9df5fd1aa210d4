"""Replaces itself by a Spark Connect server in local mode that other containers reach: Spark for docker-compose.yml.

It has no authentication, so its port belongs to a private network only.
"""

from __future__ import annotations

import os

from retrofill.settings import Settings
from retrofill.stack.java import find, spark_submit_command

PORT = 15002


def main() -> None:
    """Run the server in place of this process."""
    settings = Settings()
    conf = {
        "spark.connect.grpc.binding.address": "0.0.0.0",
        "spark.connect.grpc.binding.port": PORT,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": settings.home / "local",
        "spark.sql.warehouse.dir": settings.home / "warehouse",
        # Many small jobs at once are shared fairly, without 200 shuffle partitions each.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": 4,
        "spark.sql.session.timeZone": "UTC",
    }
    command = [
        *spark_submit_command(
            find(settings), [f"-Xmx{settings.spark_driver_memory}", f"-Dderby.system.home={settings.home}"]
        ),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master",
        f"local[{settings.spark_cores or '*'}]",
        "--name",
        "retrofill-connect",
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
