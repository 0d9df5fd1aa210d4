"""Long outages of what drivers need: nothing is spent on them, and the reason is shown.

``OUTAGE_SECONDS`` sets their length.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.installation import until
from tests.support.user import User

from retrofill_tools.stack.layout import SPARK, Layout
from retrofill_tools.stack.supervision import Supervisor

pytestmark = [pytest.mark.spark, pytest.mark.long]
SECONDS = float(os.environ.get("OUTAGE_SECONDS", "60"))
BROKEN = "ModuleNotFoundError: No module named pyspark"
WHY = f"exited with status 1: {BROKEN}"
LOOK_SECONDS = 2.0
PIPELINE = """
from retrofill import Pipeline

p = Pipeline("counts", schedule="@daily", start="2013-01-01", max_active_runs=2, batch_size=4)

@p.task
def count(run):
    assert run.spark.range(1000).count() == 1000
"""
# Of twelve days, one ends the server: the parent of its Python workers' daemon.
KILLS = """
import os, signal
from pathlib import Path
from pyspark.sql.functions import udf
from retrofill import Pipeline

p = Pipeline("kills", schedule="@daily", start="2013-01-01", max_active_runs=2, batch_size=4)

@p.task
def kill(run):
    @udf("long")
    def end(_):
        (daemon,) = [line for line in Path("/proc", str(os.getppid()), "status").read_text().splitlines() if "PPid" in line]
        os.kill(int(daemon.split()[1]), signal.SIGKILL)
        return 1
    rows = run.spark.range(100)
    if run.interval.start.day == 6:
        with Path(run.conf["kills"]).open("a") as kills:
            kills.write(f"{run.attempt}\\n")
        rows = rows.select(end("id").alias("id"))
    assert rows.count() == 100 and rows.collect()
"""
WHAT_IT_COST = """
SELECT coalesce(max(attempt), 0), coalesce(max(lost_attempts), 0), count(*) FILTER (WHERE state = 'failed')
FROM retrofill.run WHERE backfill_id = %s
"""


@pytest.fixture
def user() -> Iterator[User]:
    """A user whose drivers run in an environment that can be broken and mended."""
    with tempfile.TemporaryDirectory(prefix="retrofill-acceptance-") as folder:
        user = User(Path(folder) / "home")
        user.home.mkdir()
        (user.home / "counts.py").write_text(PIPELINE)
        user.environment["RETROFILL_POOLS"] = f'[default]\ndriver_python = "{python(user)}"'
        mend(user)
        try:
            yield user
        finally:
            user.run("down")


def python(user: User) -> Path:
    return user.home / "python"


def mend(user: User) -> None:
    """Replace the drivers' interpreter by a working one."""
    _script(python(user), f'exec {sys.executable} "$@"')


def break_(user: User) -> None:
    """Replace the drivers' interpreter by one whose environment is broken."""
    _script(python(user), f"echo '{BROKEN}' >&2; exit 1")


def _script(path: Path, line: str) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(f"#!/bin/sh\n{line}\n")
    draft.chmod(0o755)
    draft.rename(path)


def backfill(user: User, id: str, last: str) -> None:
    user.run(
        "backfill", "create", "counts", "--from", "2013-01-01", "--to", last, "--id", id,
    )  # fmt: skip


def said(user: User, *arguments: str) -> str:
    """What a command prints, without the lines' ends."""
    return " ".join(user.run(*arguments).split())


def cost(user: User, id: str) -> tuple[int, int, int]:
    """The most attempts of a run, the most counted losses, and how many runs failed."""
    ((attempts, losses, failed),) = rows(user, WHAT_IT_COST, id)
    return attempts, losses, failed


def errors(user: User, id: str) -> list[str]:
    """The errors of its failed runs."""
    query = "SELECT error::text FROM retrofill.run WHERE backfill_id = %s AND state = 'failed'"
    return [error for (error,) in rows(user, query, id)]


def rows(user: User, query: str, id: str) -> list[tuple[Any, ...]]:
    """The result of a query about a backfill."""
    with psycopg.connect(user.json("status")["postgres"]["dsn"]) as conn:
        return conn.execute(query.encode(), [id]).fetchall()


def succeeds(user: User, id: str, runs: int) -> None:
    until(lambda: user.progress(id)[0] in ("succeeded", "failed"), f"{id} ended", seconds=300)
    assert user.progress(id) == ("succeeded", runs)


def test_an_environment_that_is_broken_for_long_costs_no_attempt(user: User) -> None:
    break_(user)
    user.run("up")
    user.run("pipelines", "apply", "counts.py")
    backfill(user, "waits", "2013-01-10")
    until(lambda: user.progress("waits")[0] in ("queued", "running"), "it is planned")
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        assert cost(user, "waits") == (0, 0, 0)
        time.sleep(LOOK_SECONDS)  # nothing is to happen in this time
    until(
        lambda: WHY in said(user, "backfill", "show", "waits"),
        "the backfill says why",
        lambda: said(user, "backfill", "show", "waits") + said(user, "hosts"),
    )
    until(lambda: WHY in said(user, "status"), "the status says why")
    mend(user)
    succeeds(user, "waits", 10)
    assert cost(user, "waits") == (1, 0, 0)


def test_spark_away_for_long_fails_no_run(user: User) -> None:
    user.run("up")
    user.run("pipelines", "apply", "counts.py")
    layout = Layout(user.home)
    identity = layout.identity()
    assert identity is not None
    supervisor = Supervisor(layout, identity)
    backfill(user, "outlives", "2013-03-01")
    until(lambda: user.progress("outlives")[1] > 0, "it is at work", seconds=120)
    supervisor.stop_parts([SPARK])
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        assert cost(user, "outlives")[2] == 0, errors(user, "outlives")
        time.sleep(LOOK_SECONDS)  # nothing is to happen in this time
    until(lambda: "does not answer" in said(user, "backfill", "show", "outlives"), "why", seconds=150)
    supervisor.start_part(SPARK)
    succeeds(user, "outlives", 60)


def test_an_interval_that_ends_the_server_each_time_fails_alone(user: User) -> None:
    kills = user.home / "kills"
    (user.home / "kills.py").write_text(KILLS)
    user.run("up")
    user.run("pipelines", "apply", "kills.py")
    user.run(
        "backfill", "create", "kills", "--from", "2013-01-01", "--to", "2013-01-12", "--id", "kills",
        "--conf", json.dumps({"kills": str(kills)}),
    )  # fmt: skip
    until(lambda: user.progress("kills")[0] in ("succeeded", "failed"), "it ended", seconds=600)
    assert user.progress("kills") == ("failed", 11)
    assert len(kills.read_text().splitlines()) > 1
    (failed,) = [run for run in user.json("runs", "list", "kills") if run["state"] == "failed"]
    assert failed["interval_start"].startswith("2013-01-06")
