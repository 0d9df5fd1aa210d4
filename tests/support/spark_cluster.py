"""A small Spark standalone cluster of processes on loopback: a master, and workers that can be
killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from retrofill_core.settings import Settings
from retrofill_tools.stack import spark
from retrofill_tools.stack.layout import SPARK, Layout
from retrofill_tools.stack.ports import answers, held_port
from tests.support.installation import until
from tests.support.maven import maven

HERE = "127.0.0.1"
# Binds Spark's web UIs to loopback; they have no setting of their own for that.
LOOPBACK_ONLY = {"SPARK_LOCAL_IP": HERE}
START_SECONDS = 240.0
WORKER_MEMORY, EXECUTOR = "1g", {"spark.executor.memory": "512m"}


class Cluster:
    """A master and its workers. Their state is read from the master."""

    def __init__(self, home: Path, java: Path) -> None:
        self._home = home
        self._java = java
        self._held = ExitStack()
        self._port, self._web_port = (self._held.enter_context(held_port()) for _ in range(2))
        self._environment = {**spark.worker_environment(java, home), **LOOPBACK_ONLY}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = f"spark://{HERE}:{self._port}"

    def start(self, workers: int) -> None:
        """Start the master and its workers, and wait until all have registered."""
        self._start("master", spark.master_command(self._java, HERE, self._port, self._web_port))
        until(
            lambda: self._answers() or self.processes[0].poll() is not None,
            "the master answers",
            self.log,
            START_SECONDS,
        )
        assert self.processes[0].poll() is None, self.log()
        self._held.close()
        for n in range(workers):
            work = self._home / f"worker-{n}"
            command = spark.worker_command(self._java, self.address, HERE, work, 1, WORKER_MEMORY, 0)
            self._start(f"worker-{n}", command)
        until(lambda: len(self.alive()) == workers, "the master knows its workers", self.log, START_SECONDS)

    def kill_worker(self, n: int) -> None:
        """Kill a worker and its executors, as a machine failure would."""
        _kill(self.processes[1 + n])

    def state(self) -> dict[str, Any]:
        """The state that the master reports."""
        with urllib.request.urlopen(f"http://{HERE}:{self._web_port}/json/", timeout=10) as answer:
            return dict(json.load(answer))

    def _answers(self) -> bool:
        try:
            return bool(self.state())
        except (OSError, ValueError):
            # It does not listen yet, or serves another page while it starts.
            return False

    def alive(self) -> list[dict[str, Any]]:
        """The live workers."""
        return [worker for worker in self.state()["workers"] if worker["state"] == "ALIVE"]

    def apps(self) -> list[dict[str, Any]]:
        """The running and completed applications."""
        state = self.state()
        return [*state["activeapps"], *state["completedapps"]]

    def tasks_of(self, n: int, app: str) -> int:
        """The number of an application's tasks that a worker's executors finished, according to
        their logs.
        """
        logs = (self._home / f"worker-{n}" / app).glob("*/stderr")
        return sum(log.read_text().count(": Finished task ") for log in logs)

    def log(self) -> str:
        """The last lines of its processes' logs."""
        return "\n".join(path.read_text()[-1500:] for path in self._home.glob("*.log"))

    def stop(self) -> None:
        """Kill all of its processes."""
        self._held.close()
        for process in reversed(self.processes):
            _kill(process)

    def _start(self, name: str, command: Sequence[str]) -> None:
        self.processes.append(_start(command, self._home / f"{name}.log", self._environment))


@contextmanager
def connect_server(home: Path, java: Path, master: str, conf: Mapping[str, str]) -> Iterator[str]:
    """Run a Spark Connect server on ``master`` for the duration of the block; yields its URL."""
    settings = Settings(home=home, spark_master=master, spark_conf=dict(conf))
    with connect_process(settings, java) as (remote, _):
        yield remote


@contextmanager
def connect_process(
    settings: Settings, java: Path, port: int | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a Spark Connect server for the duration of the block and kill its Python workers with
    it. Yields its address and process.
    """
    layout = Layout(settings.home)
    layout.make()
    with ExitStack() as held:
        port = port or held.enter_context(held_port())
        server = _start(spark.prepare(layout, settings, maven(settings, java), port), layout.log(SPARK), LOOPBACK_ONLY)
        try:
            until(
                lambda: answers(port) or server.poll() is not None,
                "Spark Connect listens",
                lambda: layout.log(SPARK).read_text()[-2000:],
                START_SECONDS,
            )
            assert server.poll() is None, layout.log(SPARK).read_text()[-2000:]
            held.close()
            yield f"sc://{HERE}:{port}", server
        finally:
            _kill(server)


def _start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # UDFs from the tests' Python need workers with the same Python.
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with log.open("ab") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **python, **environment}, start_new_session=True
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
