"""The jobs of ``examples/jobs/programs.py`` and ``in_java.py`` on the embedded stack, beside a plain run of each, and broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from tests.support import java_jobs
from tests.support.console import OURS
from tests.support.installation import ROOT, Installation, until
from tests.support.maven import jar
from tests.support.shown import everything
from tests.support.user import User

from retrofill.spark.home import SparkHome
from retrofill_core.settings import Settings
from retrofill_tools.stack.maven import Artifact, cache_folder

pytestmark = [pytest.mark.spark, pytest.mark.long]
JOBS = ROOT / "examples" / "jobs"
DAYS = [f"2026-01-0{n}" for n in range(1, 6)]
SECRET = "hunter2 canary"
JAVA = (JOBS / "java" / "DayTotals.java", JOBS / "java" / "Totals.java")
NAMES = ("report", "cli", "configured", "marts", "java", "database")
POSTGRES = Artifact("org.postgresql", "postgresql", "42.7.7", "1 MB")


class World:
    """A user with a running stack, a copy of the jobs, and orders of five days."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = folder / "jobs"
        shutil.copytree(JOBS, self.jobs)
        (folder / "secret").write_text(SECRET)
        self.user = User(folder / "home")
        self.user.home.mkdir()
        java_jobs.build(JAVA, self.jobs / "sales.jar")
        names = ("SALESTOOL_TOKEN", "WAREHOUSE_PASSWORD", "SHOP_PASSWORD")
        secrets = {name: {"file": f"{folder}/secret"} for name in names}
        self.user.environment |= {
            "RETROFILL_POOLS": json.dumps({"default": {"env": secrets}}),
            "RETROFILL_SPARK_CONF_ALLOW": json.dumps(["default", "env.SALESTOOL_*", "spark.jars.packages"]),
            "RETROFILL_SPARK_SUBMIT_CONF": json.dumps(
                {
                    "spark.ui.enabled": "false",
                    "spark.sql.shuffle.partitions": "1",
                    "spark.jars.ivy": str(cache_folder(Settings()) / "ivy-of-scripts"),
                }
            ),
        }
        self.orders = folder / "orders"
        self.orders.mkdir()
        for n, day in enumerate(DAYS):
            rows = "".join(f"{shop},{10 * n + each}\n" for each, shop in enumerate(("a", "b", "cdef"[n % 4], "a")))
            (self.orders / f"{day}.csv").write_text(f"shop,amount\n{rows}")

    def fill_database(self) -> None:
        """The same orders in a database of the stack's Postgres, with a login that may only read."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as conn:
            conn.execute("CREATE DATABASE shop")
        with psycopg.connect(self.dsn("shop")) as conn:
            conn.execute("CREATE TABLE orders (day date, shop text, amount bigint)")
            for day in DAYS:
                for line in (self.orders / f"{day}.csv").read_text().splitlines()[1:]:
                    conn.execute("INSERT INTO orders VALUES (%s, %s, %s)", (day, *line.split(",")))
            conn.execute("CREATE ROLE reporter LOGIN")
            conn.execute("GRANT SELECT ON orders TO reporter")
            self.set_password(conn, SECRET)

    def set_password(self, conn: psycopg.Connection[Any], password: str) -> None:
        """As its hash: Postgres may write statements into its log."""
        hashed = conn.pgconn.encrypt_password(password.encode(), b"reporter", b"scram-sha-256").decode()
        conn.execute(f"ALTER ROLE reporter PASSWORD '{hashed}'".encode())

    def dsn(self, database: str) -> str:
        of_stack: str = Settings(home=self.user.home).dsn_of("owner")
        return psycopg.conninfo.make_conninfo(of_stack, dbname=database)

    @property
    def url(self) -> str:
        found = psycopg.conninfo.conninfo_to_dict(self.dsn("shop"))
        return f"jdbc:postgresql://{found['host']}:{found['port']}/shop"

    def request(self, out: str = "out", days: list[str] = DAYS, **conf: str) -> list[str]:
        given = {"orders": str(self.orders), "out": f"{self.folder}/{out}", "url": self.url, **conf}
        return ["--from", days[0], "--to", days[-1], "--conf", json.dumps(given)]

    def apply(self, file: str = "programs.py", status: int = 0) -> str:
        return self.user.run("pipelines", "apply", str(self.jobs / file), status=status)

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
        elif name == "java":
            home = SparkHome.of(Settings())
            command = home.command({"spark.ui.enabled": "false"}, self.folder, "client")
            of_jar = ["--class", "org.example.sales.DayTotals", str(self.jobs / "sales.jar"), orders, to]
            self.plain([*command, *of_jar], **home.environment(self.folder, os.environ))
        elif name == "database":
            login = ["--url", self.url, "--user", "reporter", "--password", SECRET]
            command = [*script, str(JOBS / "from_database.py"), "--day", day, *login, "--out", to]
            self.plain(command, PYSPARK_SUBMIT_ARGS=f"--jars {jar(POSTGRES)} pyspark-shell")
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

    def shown(self, id: str) -> dict[str, str]:
        """All that anyone may see of the stack and a backfill: logs, topics, tables, command lines, the console."""
        shown = {
            f"process {each.pid}": " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])
        }
        run = self.user.json("runs", "list", id)[0]["id"]
        for command in (
            ["backfill", "show", id],
            ["backfill", "show", id, "--json"],
            ["runs", "show", str(run)],
            ["runs", "show", str(run), "--json"],
            ["pipelines", "show", "orders_database", "--json"],
            ["config"],
        ):
            shown[" ".join(command)] = self.user.run(*command)
        of_console = self.user.json("status")["console"]["url"]
        with httpx.Client(base_url=of_console, headers=OURS, timeout=40, trust_env=False) as console:
            for path in (f"backfills/{id}", f"runs/{run}", f"runs/{run}/log", "pipelines/orders_database", "health"):
                answer = console.get(f"api/{path}")
                assert answer.status_code == 200, (path, answer.text)
                shown[f"console {path}"] = answer.text
        installation = Installation(Settings(home=self.user.home))
        try:
            return shown | everything(installation)
        finally:
            installation.close()

    @contextmanager
    def changed(self, file: str, change: Callable[[str], str | None]) -> Iterator[None]:
        """One of the files is another, or, with ``None``, not there."""
        path = self.jobs / file
        good, mode = path.read_text(), path.stat().st_mode
        new = change(good)
        path.unlink() if new is None else path.write_text(new)
        try:
            yield
        finally:
            path.write_text(good)
            path.chmod(mode)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="retrofill-jobs-") as folder:
        made = World(Path(folder))
        try:
            made.user.run("up")
            made.fill_database()
            made.apply()
            made.apply("in_java.py")
            yield made
        finally:
            made.user.run("down")


@pytest.mark.parametrize("name", NAMES)
def test_a_job_is_reviewed_and_published_and_gives_what_a_plain_run_gives(world: World, name: str) -> None:
    shown = world.user.run("backfill", "dry-run", f"orders_{name}", *world.request(), "--review")
    assert "5 " in shown and "stages nothing" not in shown, shown
    world.user.run(
        "backfill", "create", f"orders_{name}", *world.request(), "--id", name, "--review", "--watch", status=3
    )
    assert world.user.json("backfill", "show", name)["state"] == "in_review"
    assert not any(world.results("out", name).values())
    world.user.run("backfill", "publish", name, "--watch")
    for day in DAYS:
        world.plain_run(name, day)
    assert world.results("out", name) == world.results("plain", name)
    assert all(world.results("plain", name).values())


def test_no_secret_shows_while_a_script_uses_it_or_afterwards(world: World) -> None:
    reading = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'reporter' AND wait_event_type = 'Lock'"
    request = ["orders_database", *world.request("locked", [DAYS[2]]), "--id", "locked"]
    with psycopg.connect(world.dsn("shop")) as lock, psycopg.connect(world.dsn("shop"), autocommit=True) as conn:
        lock.execute("LOCK TABLE orders")
        world.user.run("backfill", "create", *request, "--reprocess", "completed")
        until(lambda: conn.execute(reading).fetchone() == (1,), "the script is reading", seconds=180)
        running = world.shown("locked")
        lock.rollback()
    until(lambda: world.user.progress("locked") == ("succeeded", 1), "it has succeeded", seconds=180)
    afterwards = world.shown("locked")
    assert any("with_arguments.py" in text for text in running.values())
    assert any("orders from a database" in text or "orders_database" in text for text in afterwards.values())
    for shown in (running, afterwards):
        assert [place for place, text in shown.items() if "canary" in text] == []


def test_no_secret_shows_of_a_script_that_fails_with_it(world: World) -> None:
    says = "parser.error('no login with ' + given.password)"
    request = ["orders_database", *world.request("says", [DAYS[2]]), "--id", "says", "--reprocess", "completed"]
    with world.changed("from_database.py", lambda text: text.replace("spark = ", f"{says}\nspark = ")):
        world.apply()
        world.user.run("backfill", "create", *request, "--watch", status=1)
    world.apply()
    shown = world.shown("says")
    assert "no login with ***" in shown["backfill show says"]
    assert [place for place, text in shown.items() if "canary" in text] == []


def empty(text: str) -> str:
    """A file without rows."""
    return ""


# By job: the file that is changed, how, and what the first line of its error says.
BROKEN: list[tuple[str, str, Callable[[str], str | None], str]] = [
    ("report", "../orders/2026-01-03.csv", empty, "no orders in ORDERS/2026-01-03.csv"),
    ("report", "../orders/2026-01-03.csv", lambda _: None, "Path does not exist: file:ORDERS/2026-01-03.csv"),
    (
        "report",
        "report.py",
        lambda text: text.replace("import argparse", "import argparse_of_the_future as argparse"),
        "ModuleNotFoundError: No module named 'argparse_of_the_future'",
    ),
    (
        "cli",
        "salestool/cli.py",
        lambda text: text.replace("import click", "import click_of_the_future as click"),
        "ModuleNotFoundError: No module named 'click_of_the_future'",
    ),
    (
        "cli",
        "programs.py",
        lambda text: text.replace('"totals", "--orders", ORDERS', '"totals"'),
        "Missing option '--orders'",
    ),
    (
        "configured",
        "configured.py",
        lambda text: text.replace("import json\n", "import json_of_the_future as json\n"),
        "ModuleNotFoundError: No module named 'json_of_the_future'",
    ),
    ("configured", "job.json", lambda text: text.replace('"target"', '"goal"'), "KeyError: 'target'"),
    (
        "configured",
        "shops.csv",
        lambda text: text + "nowhere\n",
        "Length of object (1) does not match with length of fields (2)",
    ),
    (
        "marts",
        "../orders/2026-01-03.csv",
        empty,
        "Database Error in model by_shop: no orders in ORDERS/2026-01-03.csv",
    ),
    (
        "marts",
        "build_marts.sh",
        lambda text: (
            text.replace("awk -v", "awk_of_the_future -v").replace("-eu", "-eu -o pipefail").replace("/sh", "/bash")
        ),
        "awk_of_the_future: command not found",
    ),
    ("java", "../orders/2026-01-03.csv", empty, "IllegalStateException: no orders in ORDERS/2026-01-03.csv"),
    ("java", "in_java.py", lambda text: text.replace("DayTotals", "Days"), "org.example.sales.Days"),
    (
        "java",
        "in_java.py",
        lambda text: text.replace("sales.jar", "half.jar"),
        "NoClassDefFoundError: org/example/sales/Totals",
    ),
    ("database", "programs.py", lambda text: text.replace("packages=", "files=[] and "), "org.postgresql.Driver"),
    (
        "database",
        "programs.py",
        lambda text: text.replace('"reporter"', '"nobody"'),
        'authentication failed for user "nobody"',
    ),
    (
        "database",
        "from_database.py",
        lambda text: text.replace("FROM orders", "FROM order_s"),
        'relation "order_s" does not exist',
    ),
]


@pytest.mark.parametrize(("name", "file", "change", "cause"), BROKEN, ids=[f"{each[0]}-{each[3]}" for each in BROKEN])
def test_of_a_broken_job_the_first_line_of_the_error_names_the_cause(
    world: World, name: str, file: str, change: Callable[[str], str | None], cause: str
) -> None:
    half = world.jobs / "half.jar"
    if not half.exists():
        java_jobs.build(JAVA, half, without="Totals.class")
    of_code = not file.startswith("..")
    applied = "in_java.py" if name == "java" else "programs.py"
    id = f"broken_{BROKEN.index((name, file, change, cause))}"
    request = [f"orders_{name}", *world.request(id, [DAYS[2]]), "--id", id, "--reprocess", "completed", "--watch"]
    with world.changed(file, change):
        if of_code:
            world.apply(applied)
        world.user.run("backfill", "create", *request, status=1)
    if of_code:
        world.apply(applied)
    assert cause.replace("ORDERS", str(world.orders)) in world.user.shown_error(id)


REFUSED: list[tuple[str, Callable[[str], str | None], str]] = [
    ("shops.csv", lambda _: None, "shops.csv does not exist: correct the path, or put the file there"),
    ("report.py", lambda _: None, "report.py does not exist"),
    ("job.json", lambda _: '{"day": "{interval.strat:%F}"}', "did you mean interval.start?"),
    ("build_marts.sh", lambda _: None, "build_marts.sh does not exist"),
    ("programs.py", lambda text: text.replace("{secret[SHOP_PASSWORD]}", "{secret[SHOP]}"), "SHOP"),
]


@pytest.mark.parametrize(("file", "change", "cause"), REFUSED)
def test_what_cannot_work_is_refused_by_apply(
    world: World, file: str, change: Callable[[str], str | None], cause: str
) -> None:
    with world.changed(file, change):
        said = world.apply(status=1)
    assert cause in said and len(said.splitlines()) == 1, said


def test_a_missing_key_is_refused_by_the_dry_run_and_the_request(world: World) -> None:
    for name, key in (("configured", "orders"), ("database", "out"), ("java", "orders")):
        request = [f"orders_{name}", "--from", DAYS[0], "--to", DAYS[-1], "--conf", "{}"]
        for command in ("dry-run", "create"):
            said = world.user.start("backfill", command, *request)
            assert said.returncode != 0 and f"conf has no key '{key}'" in said.stdout + said.stderr
