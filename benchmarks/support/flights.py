"""A user's stack with Spark, the demo's flights, and other ways to process its days."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from benchmarks.support.plain_days import FLIGHTS, plain_days
from retrofill.spark.java import find, spark_submit_command
from retrofill_core.settings import Settings

ROOT = Path(__file__).parents[2]
FIRST = date(2013, 1, 1)
WARM_DAYS = 4
# Whose outputs those without Retrofill are.
BARE = "bare"


class User:
    """A user at a terminal."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "flights"
        paths = [str(FLIGHTS), *(part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part)]
        self.environment = {
            **os.environ,
            "RETROFILL_HOME": str(home),
            "RETROFILL_CALLBACKS": json.dumps({"page_oncall": "callbacks:page_oncall"}),
            "FLIGHTS_PAGES": str(home / "pages"),
            "PYTHONPATH": os.pathsep.join(paths),
        }

    def run(self, *arguments: str) -> str:
        """Run a CLI command; returns its output."""
        command = [sys.executable, "-c", "from retrofill_tools.cli.main import run; run()", *arguments]
        done = subprocess.run(command, env=self.environment, cwd=self.home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Run a CLI command with ``--json``; returns the document."""
        return json.loads(self.run(*arguments, "--json"))

    def settings(self) -> Settings:
        """Settings for this stack."""
        return Settings(home=self.home)


@contextmanager
def user_with_spark(*, flights: bool, more: Mapping[str, str] | None = None) -> Iterator[User]:
    """A user with a running stack and ``more`` in its environment.

    With ``flights``, the data is prepared and the pipeline applied.
    """
    with tempfile.TemporaryDirectory(prefix="retrofill-bench-") as folder:
        user = User(Path(folder) / "home")
        user.environment |= more or {}
        user.home.mkdir()
        try:
            user.run("up")
            if flights:
                subprocess.run([sys.executable, str(FLIGHTS / "prepare.py"), str(user.data)], check=True)
                user.run("pipelines", "apply", str(FLIGHTS / "pipeline.py"))
                user.run("pipelines", "apply", "--in-place", str(Path(__file__).with_name("flights_each.py")))
            yield user
        finally:
            user.run("down")


def days(count: int, first: int = 0) -> list[str]:
    """``count`` days of 2013, starting at day ``first``."""
    return [(FIRST + timedelta(days=first + n)).isoformat() for n in range(count)]


def bare_loop(user: User, chosen: Sequence[str], parallel: int, *, shared: bool = True) -> float:
    """Seconds of the same work in a plain loop, ``parallel`` days at a time, in one session or each day in its own."""
    scratch = str(scratch_of(user, BARE))
    with _session(user) as spark, ThreadPoolExecutor(parallel) as threads:

        def one(day: str) -> None:
            with nullcontext(spark) if shared else _session(user) as used:
                plain_days(used, scratch, [day])

        list(threads.map(one, chosen[:WARM_DAYS]))
        began = time.monotonic()
        list(threads.map(one, chosen))
        return time.monotonic() - began


def bare_job(user: User, chosen: Sequence[str]) -> float:
    """Seconds of the same work as one job over all days."""
    with _session(user) as spark:
        plain_days(spark, str(scratch_of(user, BARE)), chosen[:WARM_DAYS])
        began = time.monotonic()
        plain_days(spark, str(scratch_of(user, BARE)), chosen)
        return time.monotonic() - began


@contextmanager
def _session(user: User) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    remote = user.settings().spark_remote
    assert remote is not None
    spark = SparkSession.builder.remote(remote).create()
    try:
        yield spark
    finally:
        spark.stop()


def submitted(user: User, chosen: Sequence[str]) -> float:
    """Seconds to process these days simultaneously, each with its own ``spark-submit``."""
    java, scratch = find(user.settings()), scratch_of(user, BARE)
    script = ROOT / "benchmarks" / "support" / "plain_days.py"
    command = [*spark_submit_command(java, scratch / "jvm-options"), "--master", "local[2]", str(script), str(scratch)]
    environment = {**user.environment, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}

    def one(day: str) -> None:
        done = subprocess.run(
            [*command, day], env=environment, cwd=user.home, capture_output=True, text=True, check=False
        )
        # spark-submit prints Python exceptions to stdout.
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    began = time.monotonic()
    with ThreadPoolExecutor(len(chosen)) as threads:
        list(threads.map(one, chosen))
    return time.monotonic() - began


def scratch_of(user: User, whose: str) -> Path:
    """A folder with the same sources and separate outputs: a directory belongs to one pipeline."""
    scratch = user.home / whose
    scratch.mkdir(exist_ok=True)
    for name in ("flights", "weather"):
        if not (scratch / name).exists():
            (scratch / name).symlink_to(user.data / name)
    return scratch
