"""A real Spark Connect server for the tests of drivers, started once a session, and a host that records."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.support.installation import until

from retrofill.settings import Settings
from retrofill.stack import java, spark
from retrofill.stack.layout import SPARK, Layout

START_SECONDS = 240.0


@pytest.fixture(scope="session")
def spark_remote() -> Iterator[str]:
    """The address of the server."""
    with tempfile.TemporaryDirectory(prefix="retrofill-spark-") as home, connect_server(Path(home)) as (remote, _):
        yield remote


@contextmanager
def connect_server(home: Path, port: int | None = None, **conf: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server with settings of Spark that ends with the block: its address and its process."""
    settings = Settings(home=home, spark_cores=2, spark_conf=conf)
    layout = Layout(home)
    layout.make()
    port = port or _free_port()
    command = spark.prepare(layout, settings, java.find(settings), port)
    with layout.log(SPARK).open("ab") as log:
        # Its Python workers must be the Python of whoever sends them functions.
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        server = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=home, env={**os.environ, **python}, start_new_session=True
        )
    try:
        until(
            lambda: server.poll() is not None or _listens(port),
            "Spark Connect listens",
            lambda: layout.log(SPARK).read_text()[-2000:],
            START_SECONDS,
        )
        assert server.poll() is None, layout.log(SPARK).read_text()[-2000:]
        yield f"sc://127.0.0.1:{port}", server
    finally:
        # With its Python workers, which are in its session: only this server's.
        with suppress(ProcessLookupError):  # a test may have killed it
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
