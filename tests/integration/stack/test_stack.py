"""The embedded stack as users run it: real commands, real servers, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from retrofill_tools.stack import processes
from retrofill_tools.stack.layout import Layout
from retrofill_tools.stack.ports import Reservations, is_free
from retrofill_tools.stack.processes import of_stack
from retrofill_tools.stack.supervision import Supervisor

pytestmark = pytest.mark.spark
UP_SECONDS = 150
WAIT_SECONDS = 60.0
RETROFILL = (sys.executable, "-P", "-c", "from retrofill_tools.cli.main import run; run()")


@dataclass(frozen=True)
class Home:
    """A stack's home directory and the commands run in it."""

    path: Path

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "RETROFILL_HOME": str(self.path), "RETROFILL_SPARK_CORES": "1", **more}

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*RETROFILL, *arguments],
            env=self.environment(**environment),
            cwd=self.path.parent,
            capture_output=True,
            text=True,
            timeout=UP_SECONDS,
            check=False,
        )

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.ok("status", "--json")))

    def parts(self) -> dict[str, dict[str, Any]]:
        return {part["name"]: part for part in self.status()["parts"]}

    def processes(self) -> list[psutil.Process]:
        identity = Layout(self.path).identity()
        return [] if identity is None else of_stack(identity.id)

    def supervisor(self) -> int:
        identity = Layout(self.path).identity()
        assert identity is not None
        return Supervisor(Layout(self.path), identity).pid()

    def postgres(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.status()["postgres"]["dsn"], autocommit=True)

    def bootstrap(self) -> str:
        return str(self.status()["kafka"]["bootstrap_servers"])


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Home]]:
    """Two homes; the first one's path is too long for a Unix socket, and its stack is started."""
    made = (
        Home(tmp_path_factory.mktemp("one") / ("a folder of a long name " * 4).strip()),
        Home(tmp_path_factory.mktemp("two")),
    )
    # A user's files, named like modules that Python and the services have.
    for name in ("queue", "thread", "calendar", "starlette"):
        (made[0].path.parent / f"{name}.py").write_text("raise SystemExit('this is no module of Retrofill')")
    try:
        made[0].ok("up")
        yield made
    finally:
        for home in made:
            home.run("down")
        left = [process for home in made for process in home.processes()]
        assert not left


@pytest.fixture
def one(homes: tuple[Home, Home]) -> Home:
    """The first stack, running."""
    homes[0].ok("up")
    return homes[0]


@pytest.fixture
def both(homes: tuple[Home, Home]) -> tuple[Home, Home]:
    """Both stacks, started at the same time."""
    homes[0].ok("down")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda home: home.ok("up"), homes))
    return homes


@pytest.mark.long
def test_secrets_are_the_owners_only_and_passwords_are_asked_for(one: Home) -> None:
    for name in ("endpoints.json", "identity.json"):
        assert (one.path / name).stat().st_mode & 0o077 == 0
    dsn = one.status()["postgres"]["dsn"]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(dsn, password="not the password")


@pytest.mark.long
def test_logs_shows_the_last_lines(one: Home) -> None:
    assert len(one.ok("logs", "kafka", "-n", "3").splitlines()) <= 3
    assert "spawned" in one.ok("logs", "supervisor")


@pytest.mark.long
def test_two_homes_side_by_side_share_nothing(both: tuple[Home, Home]) -> None:
    one, two = both
    assert one.bootstrap() != two.bootstrap()
    assert one.status()["spark"] != two.status()["spark"]
    assert not {process.pid for process in one.processes()} & {process.pid for process in two.processes()}
    before = one.parts()
    two.ok("down")
    assert one.parts() == before
    assert not two.processes()


@pytest.mark.long
def test_a_start_that_was_killed_leaves_nothing_that_stops_the_next(one: Home) -> None:
    before = {part["pid"] for part in one.parts().values()}
    os.kill(one.supervisor(), signal.SIGKILL)
    # This start must first stop the orphaned servers. It is killed in the middle of its own start.
    with subprocess.Popen(
        [*RETROFILL, "up"], env=one.environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as up:
        assert up.stdout is not None
        up.stdout.readline()
        up.kill()
    # The stack ignores addresses in the shell that belong to something else.
    done = one.run(
        "up",
        RETROFILL_POSTGRES_DSN="postgresql://nobody@127.0.0.1:1/elsewhere",
        RETROFILL_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = one.parts()
    assert {part["state"] for part in parts.values()} == {"running"}
    assert not before & {part["pid"] for part in parts.values()}


@pytest.mark.long
def test_of_postgres_only_the_server_itself_is_asked_to_end(one: Home) -> None:
    # Signalling the checkpointer would write the last checkpoint while clients commit, and lose
    # those commits.
    database = processes._of_database(Layout(one.path))
    assert len(database) > 3
    asked = [process.pid for process in database if processes._is_postmaster(process)]
    assert asked == [one.parts()["postgres"]["pid"]]


@pytest.mark.long
def test_a_contradiction_is_one_line_and_leaves_nothing(homes: tuple[Home, Home]) -> None:
    one = homes[0]
    one.ok("down")
    failed = one.run("up", RETROFILL_PARTITIONS="7")
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1
    assert "4 partitions" in failed.stderr
    assert not one.processes()


def test_without_a_stack_everything_is_stopped(tmp_path: Path) -> None:
    home = Home(tmp_path / "none")
    assert {part["state"] for part in home.parts().values()} == {"stopped"}
    assert "nothing was running" in home.ok("down")
    assert home.run("logs", "nobody").returncode == 1
    assert home.run("logs", "kafka").returncode == 1


def test_ports_that_are_held_are_not_chosen_twice() -> None:
    with Reservations() as one_start, Reservations() as another_start:
        first = one_start.choose(28_000, None)
        assert one_start.choose(28_000, None) != first
        assert another_start.choose(28_000, first) != first
        assert is_free(first)
    with Reservations() as later:
        assert later.choose(28_000, first) == first
