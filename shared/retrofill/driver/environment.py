"""Gives Spark's executors the packed environment that a driver runs in."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any, Mapping
from urllib.parse import urlsplit

from retrofill.sdk.names import LOOPBACK
from retrofill.spark.home import DRIVER_PYTHON, PYTHON

# Its file, on this machine. The interpreter of the driver is that of the environment.
VARIABLE = "RETROFILL_DRIVER_ENVIRONMENT"
FILES = "spark.files"
# Of a session. Drivers of others are not affected.
SESSION_PYTHON = "spark.sql.execution.pyspark.python"


def packed_file() -> Path | None:
    """The packed environment of this driver, if it has one."""
    file = os.environ.get(VARIABLE)
    return None if not file else Path(file)


def with_environment(conf: Mapping[str, str], master: str, python: str, file: Path) -> dict[str, str]:
    """Spark settings for an application whose driver runs ``python``, and its executors the file.

    They replace what ``conf`` says of Python. A file is executed with the Python that it was packed
    for, which is on each machine's PATH. Executors of local mode have no folder of their own, and
    need none: the driver's interpreter is there.
    """
    if master.startswith("local"):
        return {**conf, PYTHON: python, DRIVER_PYTHON: python}
    files = ",".join(filter(None, [conf.get(FILES), str(file)]))
    return {**conf, FILES: files, PYTHON: f"./{file.name}", DRIVER_PYTHON: python}


def give(session: Any, remote: str, file: Path) -> None:
    """Make the executors of a Connect session run the environment."""
    if _are_here(session, remote):
        python = sys.executable
    else:
        session.addArtifacts(str(file), file=True)
        # Spark starts the workers of a session in the folder with its artifacts.
        python = f"./{file.name}"
    session.conf.set(SESSION_PYTHON, python)


def _are_here(session: Any, remote: str) -> bool:
    """Whether the session's executors run on this machine, and not only behind a port of it."""
    if urlsplit(remote).hostname not in LOOPBACK or not session.conf.get("spark.master").startswith("local"):
        return False
    return session.conf.get("spark.driver.host") in (*LOOPBACK, socket.gethostname(), socket.getfqdn())
