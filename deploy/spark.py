"""Exec a Spark process for docker-compose.yml: ``spark.py connect``, ``master`` or ``worker``.

``connect`` uses the master in RETROFILL_SPARK_MASTER, or local mode if it is not set; ``worker`` requires
it. They have no authentication, so keep their ports in a private network.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from retrofill.spark.java import find
from retrofill_core.settings import Settings
from retrofill_tools.stack import spark

CONNECT_PORT, MASTER_PORT, WEB_PORT = 15002, 7077, 8080
EVERYWHERE = "0.0.0.0"


def connect(settings: Settings, java: Path) -> list[str]:
    """Command of a Spark Connect server; executors reach it at the container's address."""
    here = {"spark.driver.host": socket.gethostbyname(socket.gethostname())}
    settings = settings.model_copy(update={"spark_conf": here | settings.spark_conf})
    return spark.connect_command(settings, java, settings.home, EVERYWHERE, CONNECT_PORT)


def master(_: Settings, java: Path) -> list[str]:
    """Command of a master; workers must address it by the container's name."""
    return spark.master_command(java, socket.gethostname(), MASTER_PORT, WEB_PORT)


def worker(settings: Settings, java: Path) -> list[str]:
    """Command of a worker of RETROFILL_SPARK_MASTER; exits if that is not set."""
    os.environ.update(spark.worker_environment(java, settings.home))
    if settings.spark_master is None:
        raise SystemExit("RETROFILL_SPARK_MASTER is not set")
    host = socket.gethostbyname(socket.gethostname())
    cores, memory = settings.spark_cores or os.cpu_count() or 1, os.environ.get("SPARK_WORKER_MEMORY", "1g")
    work = settings.home / "work"
    return spark.worker_command(java, settings.spark_master, host, work, cores, memory, WEB_PORT)


PARTS: dict[str, Callable[[Settings, Path], list[str]]] = {"connect": connect, "master": master, "worker": worker}


def main() -> None:
    """Replace this process with the one that ``sys.argv`` names."""
    settings = Settings()
    command = PARTS[sys.argv[1]](settings, find(settings))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
