"""The embedded stack with Spark, as a user runs it: up, apply, backfill, inspect, kill, down."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from tests.support.doc_commands import shown, words_of
from tests.support.installation import ROOT, until
from tests.support.user import User, is_driver

DAYS = [f"2013-01-{day:02}" for day in range(1, 7)]
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    """A user with a running stack and the prepared flights data."""
    with tempfile.TemporaryDirectory(prefix="retrofill-acceptance-") as folder:
        user = User(Path(folder) / "home")
        user.home.mkdir()
        subprocess.run(
            [sys.executable, str(ROOT / "examples/flights/prepare.py"), str(user.data)], check=True, timeout=120
        )
        try:
            user.run("up")
            user.run("pipelines", "apply", str(ROOT / "examples/flights/pipeline.py"))
            yield user
        finally:
            user.run("down")


def backfill(user: User, id: str, first: str, last: str, *more: str) -> None:
    """Request a backfill of the flights."""
    conf = json.dumps({"data": str(user.data)})
    user.run("backfill", "create", "flights_daily", "--from", first, "--to", last, "--id", id, "--conf", conf, *more)


@pytest.fixture(scope="module")
def first(user: User) -> str:
    """A backfill of six days that has succeeded."""
    backfill(user, "first", DAYS[0], DAYS[-1], "--watch")
    return "first"


def test_a_backfill_on_spark_gives_the_figures_that_pandas_gives(user: User, first: str) -> None:
    shown = user.json("backfill", "show", first)
    assert shown["state"] == "succeeded"
    assert shown["by_state"] == {"succeeded": len(DAYS)}
    for day in DAYS:
        source = pd.read_parquet(user.data / "flights" / f"day={day}")
        figures = pd.read_parquet(user.data / "delays" / f"day={day}").set_index("carrier")
        assert figures["flights"].to_dict() == source.groupby("carrier").size().to_dict()
        expected = source.groupby("carrier")["dep_delay"].mean()
        pd.testing.assert_series_equal(figures["mean_dep_delay"].sort_index(), expected, check_names=False)
    assert "already exists" in user.run(
        "backfill", "create", "flights_daily", "--from", DAYS[0], "--to", DAYS[-1], status=1
    )


def test_everything_is_on_loopback_and_its_secrets_are_the_owners(user: User) -> None:
    listening = {
        connection.laddr.ip
        for process in user.processes()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening and listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert [(user.home / name).stat().st_mode & 0o077 for name in ("endpoints.json", "identity.json")] == [0, 0]


@pytest.mark.long
def test_kill_9_of_each_part_in_the_middle_loses_nothing(user: User) -> None:
    backfill(user, "killed", "2013-03-01", "2013-03-24")
    for n, part in enumerate(["run-starter", "backfill-planner", "driver", "spark-connect"]):
        wanted = 3 * (n + 1)
        until(
            lambda wanted=wanted: user.progress("killed")[1] >= wanted,  # type: ignore[misc]
            f"{wanted} runs succeeded",
            seconds=120,
        )
        pid = user.pid("run-starter")
        if part == "driver":
            assert pid is not None
            drivers = [child for child in psutil.Process(pid).children() if is_driver(child)]
            drivers[0].kill()
        else:
            killed = user.pid(part)
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            until(lambda part=part, killed=killed: user.pid(part) not in (None, killed), f"{part} runs again")  # type: ignore[misc]
    until(lambda: user.progress("killed")[0] in ("succeeded", "failed"), "it ended", seconds=240)
    shown = user.json("backfill", "show", "killed")
    assert shown["by_state"] == {"succeeded": 24}, shown
    hosts = {p.pid for p in user.processes() if "run_starter" in " ".join(p.cmdline())}
    drivers = [process for process in user.processes() if is_driver(process)]
    assert drivers
    assert all(driver.ppid() in hosts for driver in drivers), "a driver outlived the run-starter that started it"


def test_one_deadline_one_callback(user: User) -> None:
    user.run(
        "backfill",
        "create",
        "flights_late_report",
        "--from",
        "2013-01-01",
        "--to",
        "2013-01-01",
        "--id",
        "late",
        "--watch",
    )
    until(
        lambda: [c["state"] for c in user.json("callbacks", "list", "--backfill", "late")] == ["succeeded"],
        "the callback was called",
    )
    assert [d["state"] for d in user.json("deadlines", "list", "--backfill", "late")] == ["missed"]
    assert len((user.home / "pages").read_text().splitlines()) == 1


@pytest.mark.long
def test_up_is_idempotent_and_state_survives_down(user: User, first: str) -> None:
    before = user.json("status")
    assert "already running" in user.run("up")
    assert user.json("status") == before
    user.run("down")
    assert user.processes() == []
    user.run("up")
    assert user.json("backfill", "show", first)["state"] == "succeeded"


@pytest.mark.long
def test_down_leaves_nothing_after_the_supervisor_was_killed(user: User) -> None:
    supervisor = int((user.home / "run" / "supervisord.pid").read_text())
    os.kill(supervisor, signal.SIGKILL)
    assert user.processes()
    user.run("down")
    assert user.processes() == []
    user.run("up")
    assert {part["state"] for part in user.json("status")["parts"]} == {"running"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["backfill", "create", "flights_dayly", "--from", "2013-01-01", "--to", "2013-01-02"], "flights_daily"),
        (["logs", "nosuch"], "backfill-planner"),
    ],
)
def test_mistakes_get_one_line(user: User, arguments: list[str], words: str) -> None:
    said = user.run(*arguments, status=1)
    assert words in said
    assert len(said.strip().splitlines()) == 1


README = ROOT / "README.md"


def section(heading: str) -> str:
    """A section of the README."""
    return README.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def blocks(heading: str) -> list[str]:
    """The indented blocks of a section, as displayed."""
    without_sources = re.sub(r"```python\n.*?```", "", section(heading), flags=re.DOTALL)
    return [textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n)+", without_sources, re.MULTILINE)]


def sources(heading: str) -> list[str]:
    """The Python files of a section."""
    found: list[str] = re.findall(r"```python\n(.*?)```", section(heading), re.DOTALL)
    return found


@pytest.fixture(scope="module")
def orders(user: User) -> Path:
    """The output of the README's request, whose commands have run."""
    (source,) = sources("A pipeline of functions")
    (user.home / "orders.py").write_text(source)
    commands = blocks("A request")[0].splitlines()
    out = user.home / "orders"
    for command in commands:
        # Fewer days of it: each costs a second of Spark's.
        words = shlex.split(command.replace("/tmp/orders", str(out)).replace("2024-01-31", "2024-01-05"), comments=True)
        if words[0] != "retrofill" or words[1] == "up":
            continue  # already up
        if "ID" in words:
            words[words.index("ID")] = user.json("backfill", "list")[0]["id"]
        user.run(*words[1:])
    return out


def test_the_readme_is_true(user: User, orders: Path) -> None:
    assert len(list(orders.glob("day=*"))) == 5
    (newest,) = [b for b in user.json("backfill", "list") if b["pipeline"] == "orders_daily"]
    assert newest["state"] == "succeeded"


FIVE_MINUTES = "Five minutes with your own script"


@pytest.fixture(scope="module")
def five_minutes(user: User) -> dict[str, dict[str, int]]:
    """What readers saw after each command of the README's five minutes: the sum of the amounts of each day."""
    for name, source in zip(("totals.py", "sales.py"), sources(FIVE_MINUTES), strict=True):
        (user.home / name).write_text(source.replace("/tmp/sales", str(user.home / "sales")))
    path = f"{Path(sys.executable).parent}:{user.environment['PATH']}"
    seen = {}
    for command in "".join(blocks(FIVE_MINUTES)).splitlines():
        if command.startswith("make ") or command.split("#")[0].split() in (["retrofill", "up"], ["retrofill", "down"]):
            continue  # as the stack of this module was
        env = user.environment | {"PATH": path}
        done = subprocess.run(
            ["sh", "-ec", command], env=env, cwd=user.home, capture_output=True, text=True, check=False
        )
        assert done.returncode == (3 if "--review" in command else 0), f"{command}: {done.stdout}\n{done.stderr}"
        days = sorted((user.home / "sales").glob("day=*"))
        seen[command] = {day.name: int(pd.read_parquet(day)["sum(amount)"].sum()) for day in days}
    return seen


@pytest.mark.long
def test_the_five_minutes_of_the_readme_are_as_it_says(five_minutes: dict[str, dict[str, int]]) -> None:
    days = {f"day=2024-01-0{day}": 1000 * 999 // 2 + 1000 * day for day in (1, 2, 3)}
    changed = {day: amount + 5000 for day, amount in days.items()}
    seen = [amounts for command, amounts in five_minutes.items() if "apply" not in command]
    # Run, edited, dry run, review, comparison; published; undone.
    assert seen == [days] * 5 + [changed, days]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_what_the_readme_does_with_kcat(user: User, orders: Path) -> None:
    (script,) = [block for block in blocks("A request") if "kcat" in block]
    kafka = user.json("status")["kafka"]["bootstrap_servers"]
    script = script.replace("127.0.0.1:19092", kafka).replace("/tmp/orders", str(orders))
    ask, read = script.split("kcat -C")
    subprocess.run(["sh", "-ec", ask], check=True, timeout=60)
    until(lambda: any(b["id"] == "by-hand" for b in user.json("backfill", "list")), "it is planned")
    fields = subprocess.run(["sh", "-ec", f"kcat -C{read}"], capture_output=True, text=True, check=True, timeout=60)
    assert any(line.startswith("by-hand ") and "BackfillPlanned" in line for line in fields.stdout.splitlines())


# Commands that run until Ctrl-C, or that end or undo what this module shares. Other tests cover
# them.
GO_ON = ("-f", "watch", "service", "--watch", "console")
NOT_HERE = ("up", "down", "init", "pause", "resume", "cancel", "delete", "drop")


# Expected refusals of commands whose arguments only exist for the reader of the page, or that the
# README test has already run.
REFUSALS = {
    r"backfill (create|dry-run) orders_daily": "already exists",
    r"backfill create sales": "already",
    r"backfill publish fix": "fix",
    r"backfill undo fix": "fix",
    r"(backfill show|runs \w+) ID": "no backfill",
    r"intervals show PIPELINE": "no pipeline 'PIPELINE'",
    r"(callbacks|deadlines) (show|replay) 42": "42",
    r"--requirements requirements.txt": "requirements.txt cannot be read",
    r"tokens (list|revoke)": "RETROFILL_CONSOLE_TOKENS",
    r"dead-letters (replay|drop) 2:\d+": "2:",
}


@pytest.mark.long
@pytest.mark.usefixtures("orders", "five_minutes")
def test_the_commands_of_all_pages_run(user: User) -> None:
    # Those of the how-to pages are about backfills that only their readers have.
    commands = sorted({command for page, command in shown() if not page.startswith("docs/how-to/")})
    ran = [command for command in commands if not {*words_of(command)} & {*GO_ON, *NOT_HERE}]
    assert len(ran) > 10
    wrong = {command: said for command in ran if (said := wrong_in(user.start(*words_of(command)), command))}
    assert wrong == {}


def wrong_in(done: subprocess.CompletedProcess[str], command: str) -> str | None:
    """What a command of a page said, unless it succeeded or refused with the words that it should."""
    reason = next((said for pattern, said in REFUSALS.items() if re.search(pattern, command)), None)
    refused = done.returncode == 1 and reason is not None and reason in done.stderr and done.stderr.count("\n") == 1
    return None if done.returncode == 0 or refused else done.stderr
