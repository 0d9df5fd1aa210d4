"""The jobs of ``examples/jobs/programs.py`` on the embedded stack, as a user runs them, beside a plain run of each, and broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.installation import ROOT
from tests.support.user import User

pytestmark = [pytest.mark.spark, pytest.mark.long]
JOBS = ROOT / "examples" / "jobs"
DAYS = [f"2026-01-0{n}" for n in range(1, 6)]
SECRET = "hunter2 canary"


class World:
    """A user with a running stack, a copy of the jobs, and orders of five days."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = folder / "jobs"
        shutil.copytree(JOBS, self.jobs)
        (folder / "secret").write_text(SECRET)
        self.user = User(folder / "home")
        self.user.home.mkdir()
        secrets = {name: {"file": f"{folder}/secret"} for name in ("SALESTOOL_TOKEN", "WAREHOUSE_PASSWORD")}
        self.user.environment |= {
            "RETROFILL_POOLS": json.dumps({"default": {"env": secrets}}),
            "RETROFILL_SPARK_CONF_ALLOW": json.dumps(["default", "env.SALESTOOL_*"]),
            "RETROFILL_SPARK_SUBMIT_CONF": json.dumps(
                {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
            ),
        }
        self.orders = folder / "orders"
        self.orders.mkdir()
        for n, day in enumerate(DAYS):
            rows = "".join(f"{shop},{10 * n + each}\n" for each, shop in enumerate(("a", "b", "cdef"[n % 4], "a")))
            (self.orders / f"{day}.csv").write_text(f"shop,amount\n{rows}")

    def request(self, out: str = "out", **conf: str) -> list[str]:
        given = {"orders": str(self.orders), "out": f"{self.folder}/{out}", **conf}
        return ["--from", DAYS[0], "--to", DAYS[-1], "--conf", json.dumps(given)]

    def apply(self, status: int = 0) -> str:
        return self.user.run("pipelines", "apply", str(self.jobs / "programs.py"), status=status)

    def plain(self, command: list[str], **more: str) -> None:
        environment = {**os.environ, **more}
        done = subprocess.run(
            command, env=environment, cwd=self.folder / "work", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def plain_run(self, name: str, day: str) -> None:
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        orders, to = f"{self.orders}/{day}.csv", f"{self.folder}/plain/{name}/day={day}"
        script = [sys.executable]
        if name == "report":
            self.plain([*script, str(JOBS / "report.py"), "--orders", orders, "--root", to])
        elif name == "cli":
            command = [*script, str(JOBS / "run_salestool.py"), "totals", "--orders", orders]
            self.plain(command, SALESTOOL_OUT=to, SALESTOOL_TOKEN=SECRET)
        elif name == "configured":
            shutil.copy(JOBS / "shops.csv", work)
            job = {"orders": orders, "defaults": {"city": "unknown"}, "target": {"path": to}}
            (work / "job.json").write_text(json.dumps(job))
            self.plain([*script, str(JOBS / "configured.py")])
        else:
            shutil.copytree(JOBS / "models", work / "models")
            (work / "profile.env").write_text(f"USER=loader\nPASSWORD='{SECRET}'\nDAY={day}\n")
            self.plain([str(JOBS / "build_marts.sh"), orders, to])

    def results(self, place: str, name: str) -> dict[str, list[str]]:
        """The rows of each day."""
        import pyarrow.parquet as parquet

        found = {}
        for day in DAYS:
            folder = self.folder / place / name / f"day={day}"
            rows = [row for file in folder.glob("*.csv") for row in file.read_text().splitlines()]
            files = [each for each in folder.glob("*.parquet") if each.stat().st_size]
            found[day] = sorted([*rows, *(str(row) for file in files for row in parquet.read_table(file).to_pylist())])
        return found


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="retrofill-jobs-") as folder:
        made = World(Path(folder))
        try:
            made.user.run("up")
            made.apply()
            yield made
        finally:
            made.user.run("down")


@pytest.mark.parametrize("name", ["report", "cli", "configured", "marts"])
def test_a_job_gives_what_a_plain_run_gives_and_no_secret_shows(world: World, name: str) -> None:
    shown = world.user.run("backfill", "dry-run", f"orders_{name}", *world.request())
    assert "5 " in shown, shown
    world.user.run("backfill", "create", f"orders_{name}", *world.request(), "--id", name, "--watch")
    for day in DAYS:
        world.plain_run(name, day)
    assert world.results("out", name) == world.results("plain", name)
    assert all(world.results("plain", name).values())
    logs = "".join(path.read_text(errors="replace") for path in (world.user.home / "logs").rglob("*.log*"))
    assert "canary" not in logs + world.user.run("pipelines", "show", f"orders_{name}", "--json")


def broken(world: World, name: str, out: str) -> str:
    """What is shown first of a backfill that fails."""
    world.user.run(
        "backfill",
        "create",
        f"orders_{name}",
        *world.request(out),
        "--id",
        out,
        "--reprocess",
        "completed",
        "--watch",
        status=1,
    )
    return world.user.run("backfill", "show", out)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("report", "no orders in ORDERS/2026-01-03.csv"),
        ("marts", "Database Error in model by_shop: no orders in ORDERS/2026-01-03.csv"),
    ],
)
def test_of_a_bad_day_the_first_line_names_the_cause(world: World, name: str, cause: str) -> None:
    good = (world.orders / f"{DAYS[2]}.csv").read_text()
    (world.orders / f"{DAYS[2]}.csv").write_text("")
    try:
        shown = broken(world, name, f"bad_{name}")
    finally:
        (world.orders / f"{DAYS[2]}.csv").write_text(good)
    assert cause.replace("ORDERS", str(world.orders)) in shown, shown


def test_of_a_wrong_dependency_the_first_line_names_the_cause(world: World) -> None:
    cli = world.jobs / "salestool" / "cli.py"
    good = cli.read_text()
    cli.write_text(good.replace("import click", "import click_of_the_future as click"))
    try:
        world.apply()
        shown = broken(world, "cli", "wrong_dependency")
    finally:
        cli.write_text(good)
        world.apply()
    assert "ModuleNotFoundError: No module named 'click_of_the_future'" in shown, shown


def test_a_missing_file_and_a_wrong_field_are_refused_by_apply(world: World) -> None:
    for file, text, cause in (
        ("shops.csv", None, "shops.csv does not exist: correct its name, or put it there"),
        ("job.json", '{"day": "{interval.strat:%F}"}', "did you mean interval.start?"),
        ("build_marts.sh", None, "build_marts.sh does not exist"),
    ):
        path = world.jobs / file
        good, mode = path.read_text(), path.stat().st_mode
        path.unlink() if text is None else path.write_text(text)
        try:
            said = world.apply(status=1)
        finally:
            path.write_text(good)
            path.chmod(mode)
        assert cause in said and len(said.splitlines()) == 1, said


def test_a_missing_key_is_refused_by_the_dry_run_and_the_request(world: World) -> None:
    request = ["orders_configured", "--from", DAYS[0], "--to", DAYS[-1], "--conf", "{}"]
    for command in ("dry-run", "create"):
        said = world.user.start("backfill", command, *request)
        assert said.returncode != 0 and "conf has no key 'orders'" in said.stdout + said.stderr
