"""The demo in containers: two replicas of each service, a Spark cluster, 30 days of flights, and kills midway.

Run by ``make compose-demo`` (``DAYS=90``: more days; ``KEEP=1``: keep the containers running); requires
Docker and Compose. The project is ``retrofill-demo``; its generated passwords are in ``RETROFILL_HOME``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from demo import FIRST, compare, console, say
from outputs import read_folder
from prepare import prepare, read_flights
from rich.table import Table

from retrofill_tools.stack.ports import held_port

ROOT = Path(__file__).parents[2]
PROJECT = "retrofill-demo"
SERVICES = ("backfill-planner", "run-starter", "deadline-watcher", "callback-runner")
WORKER = "spark-worker"
REPLICAS = 2
# --no-deps: all dependencies are up, and init would run again each time.
RUN = ("run", "--rm", "--no-TTY", "--no-deps")
WAIT_SECONDS = 900.0
CHECK_SECONDS = 2.0
# The kills must come while runs are live: thirty days take a few seconds.
KILL_CHECK_SECONDS = 0.1


class Compose:
    """``docker compose`` with the demo's project and passwords."""

    def __init__(self, home: Path) -> None:
        self._env = home / "compose.env"
        # Held while the demo runs: Docker can bind these ports, and no other process gets them.
        self._held = ExitStack()
        if not self._env.exists():
            lines = [line for line in (ROOT / ".env.example").read_text().splitlines() if line[:1] != "#"]
            self._env.touch(mode=0o600)
            # An embedded stack may use the default ports.
            ports = {name: self._held.enter_context(held_port()) for name in ("POSTGRES_PORT", "KAFKA_PORT")}
            filled = [f"{line}{secrets.token_hex(16)}" if line.endswith("=") else line for line in lines]
            self._env.write_text("\n".join([*filled, *(f"{name}={port}" for name, port in ports.items()), ""]))

    def command(self, *args: str) -> list[str]:
        """The full command line of a Compose command."""
        return ["docker", "compose", "--project-name", PROJECT, "--env-file", str(self._env), *args]

    def __call__(self, *args: str, stdin: Any = None) -> None:
        subprocess.run(self.command(*args), cwd=ROOT, check=True, stdin=stdin)

    def read(self, *args: str) -> str:
        """Run a command and return its standard output."""
        return subprocess.run(self.command(*args), cwd=ROOT, check=True, capture_output=True, text=True).stdout

    def retrofill(self, *args: str) -> Any:
        """Run the CLI in its own container and return its JSON document."""
        return json.loads(self.read(*RUN, "cli", *args, "--json"))

    def sql(self, query: str) -> str:
        """The query's result as unaligned text."""
        return self.read("exec", "--no-TTY", "postgres", "psql", "-U", "retrofill", "-Atc", query).strip()

    def containers(self, service: str) -> list[str]:
        """Ids of the running containers of a service."""
        return self.read("ps", "--quiet", service).split()


def copy_in(compose: Compose, folder: Path, to: str) -> None:
    """Copy a directory's content into the volume of the drivers and Spark."""
    command = f"mkdir -p {to} && tar -x -C {to}"
    with subprocess.Popen(["tar", "-c", "-C", str(folder), "."], stdout=subprocess.PIPE) as packed:
        compose(*RUN, "--entrypoint", "sh", "cli", "-c", command, stdin=packed.stdout)


def copy_out(compose: Compose, folder: str, to: Path) -> None:
    """Copy a directory of that volume to the host."""
    to.mkdir(parents=True, exist_ok=True)
    command = compose.command(*RUN, "--entrypoint", "tar", "cli", "-c", "-C", folder, ".")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as packed:
        subprocess.run(["tar", "-x", "-C", str(to)], stdin=packed.stdout, check=True)


def by_state(compose: Compose, id: str) -> dict[str, int]:
    """The backfill's number of runs in each state; from Postgres, as a container of the CLI takes seconds to start."""
    return dict(
        json.loads(
            compose.sql(
                "SELECT coalesce(json_object_agg(state, n), '{}') FROM (SELECT state, count(*) AS n FROM retrofill.run"
                f" WHERE backfill_id = '{id}' GROUP BY state) AS runs"
            )
        )
    )


def await_runs(
    show: Callable[[], dict[str, Any]], enough: Callable[[dict[str, Any]], bool], every: float = CHECK_SECONDS
) -> dict[str, Any]:
    """Poll the backfill until ``enough`` accepts it, and return it; exits after ``WAIT_SECONDS``."""
    until = time.monotonic() + WAIT_SECONDS
    while not enough(found := show()):
        if time.monotonic() > until:
            raise SystemExit(f"the backfill takes too long: {found.get('by_state', found)}")
        time.sleep(every)
    return found


def kill_busy_ones(compose: Compose) -> list[str]:
    """``docker kill`` the run-starter that hosts an attempt, a planner and a Spark worker; return their ids."""
    hosts = compose.sql("SELECT host FROM retrofill.attempt WHERE state = 'running' ORDER BY began_at DESC LIMIT 1")
    # An instance name contains its service, its host (here a container id) and its process id.
    busy = [id for id in compose.containers("run-starter") if f"-{id[:12]}-" in hosts]
    others = [compose.containers(name)[0] for name in ("backfill-planner", WORKER)]
    victims = [(busy or compose.containers("run-starter"))[0], *others]
    subprocess.run(["docker", "kill", *victims], check=True, capture_output=True)
    return victims


def main() -> int:
    """Run the demo; exit status 1 if the result is wrong."""
    options = argparse.ArgumentParser()
    options.add_argument("--days", type=int, default=30)
    options.add_argument("--keep", action="store_true")
    args = options.parse_args()
    home = Path(os.environ.get("RETROFILL_HOME", ".retrofill")).absolute()
    home.mkdir(exist_ok=True)
    days = [(FIRST + timedelta(days=n)).isoformat() for n in range(max(6, min(args.days, 365)))]
    say("The flights of 2013 as Parquet")
    prepare(home / "flights")
    compose = Compose(home)
    try:
        return run(compose, home, days)
    except subprocess.CalledProcessError as e:
        raise SystemExit(f"{' '.join(map(str, e.cmd))}: status {e.returncode} {e.stderr or ''}") from e
    finally:
        if not args.keep:
            say("Removing the containers and their data")
            compose("down", "--volumes", "--timeout", "15")


def run(compose: Compose, home: Path, days: list[str]) -> int:
    say("Images")
    began = time.monotonic()
    compose("build", "--quiet")
    compose("--profile", "cli", "build", "--quiet", "cli")
    built = time.monotonic() - began
    say(f"Containers: {REPLICAS} of each service and Spark worker")
    began = time.monotonic()
    scales = [part for name in (*SERVICES, WORKER) for part in ("--scale", f"{name}={REPLICAS}")]
    compose("up", "--detach", "--wait", *scales)
    up = time.monotonic() - began
    copy_in(compose, home / "flights", "/data/flights")
    compose(*RUN, "cli", "pipelines", "apply", "/pipelines/flights/pipeline.py")
    say(f"Backfill: {len(days)} days")
    id = f"flights-{int(time.time())}"
    compose.retrofill(
        "backfill", "create", "flights_daily", "--from", days[0], "--to", days[-1], "--id", id,
        "--conf", json.dumps({"data": "/data/flights"}),
    )  # fmt: skip

    def show() -> dict[str, Any]:
        return dict(compose.retrofill("backfill", "show", id))

    at_kill = await_runs(lambda: by_state(compose, id), lambda runs: runs.get("succeeded", 0) > 0, KILL_CHECK_SECONDS)
    victims = kill_busy_ones(compose)
    console.print(f"killed {', '.join(id[:12] for id in victims)} at {at_kill}")
    shown = await_runs(show, lambda found: found["ended_at"] is not None)
    return report(compose, home, days, shown, at_kill, {"built": built, "up": up})


def report(
    compose: Compose,
    home: Path,
    days: list[str],
    shown: dict[str, Any],
    at_kill: dict[str, Any],
    took: dict[str, float],
) -> int:
    """Compare the output with pandas and print a summary; returns the exit status."""
    out = home / "compose" / str(shown["id"])
    copy_out(compose, "/data/flights/delays", out / "delays")
    flights = compare(read_folder(out / "delays", days), days)
    expected = int(read_flights()["day"].isin(days).sum())
    wall = (datetime.fromisoformat(shown["ended_at"]) - datetime.fromisoformat(shown["requested_at"])).total_seconds()
    again = compose.sql("SELECT count(*) FROM retrofill.run WHERE attempt > 1")
    say("Summary")
    table = Table(show_header=False, box=None)
    for name, value in (
        ("images", f"built in {took['built']:.0f} s"),
        ("containers", f"all healthy after {took['up']:.0f} s"),
        ("runs", ", ".join(f"{n} {state}" for state, n in shown["by_state"].items())),
        ("backfill", f"{wall:.1f} s"),
        (
            "killed",
            f"a run-starter, a planner and a Spark worker at {at_kill}; retried runs: {again}",
        ),
        ("flights", f"{flights:,} in the output, {expected:,} in the source; every day equal to pandas"),
    ):
        table.add_row(name, value)
    console.print(table)
    midway = at_kill.get("succeeded", 0) < len(days)
    if not midway:
        console.print("the kills came too late: every run had ended. Try more days (DAYS=90).")
    good = midway and shown["by_state"] == {"succeeded": len(days)} and flights == expected
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
