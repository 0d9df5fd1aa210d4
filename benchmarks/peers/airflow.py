"""Runs Apache Airflow: own environment, own database on the same Postgres, LocalExecutor."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from tests.support.installation import until

from retrofill_tools.stack.ports import held_port

FOLDER = Path(__file__).parent
PARTS = (
    ("api-server", "--workers", "2"),
    ("scheduler",),
    ("dag-processor",),
    ("triggerer",),
)
DEADLINE_SECONDS = 10.0
START_SECONDS = 180.0


class Refused(Exception):
    """An error response of the API. ``code`` is the HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Airflow:
    """A running Airflow.

    ``parallelism`` is the number of simultaneous tasks, equal to Retrofill's drivers.
    """

    def __init__(self, binaries: Path, home: Path, owner_dsn: str, parallelism: int) -> None:
        self.notes = home / "notes"
        self._home, self._binaries = home, binaries
        self._dsn = make_conninfo(owner_dsn, dbname="airflow")
        with psycopg.connect(make_conninfo(owner_dsn, dbname="postgres"), autocommit=True) as conn:
            conn.execute("CREATE DATABASE airflow")
        # Keep the ports reserved until the processes bind them.
        self._held = ExitStack()
        self._port, *self._log_ports = (self._held.enter_context(held_port()) for _ in range(3))
        self._environment = self._settings(parallelism)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._token = ""

    def _settings(self, parallelism: int) -> dict[str, str]:
        known = conninfo_to_dict(self._dsn)
        where = f"{known['user']}:{known.get('password', '')}@{known['host']}:{known['port']}/airflow"
        here = f"http://127.0.0.1:{self._port}"
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            "AIRFLOW_HOME": str(self._home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{where}",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(parallelism),
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "64",
            # The defaults suit many DAGs on large machines: a one-second idle sleep and ten runs
            # per loop.
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.05",
            "AIRFLOW__SCHEDULER__MAX_DAGRUNS_TO_CREATE_PER_LOOP": "100",
            "AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": "100",
            "AIRFLOW__SCHEDULER__MAX_TIS_PER_QUERY": "0",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(FOLDER / "dags"),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{here}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self._port),
            "AIRFLOW__API__BASE_URL": here,
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            # Avoid ports that are in use.
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self._log_ports[0]),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self._log_ports[1]),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PYTHONPATH": str(FOLDER / "dags"),
            "PEER_NOTES": str(self.notes),
            "PEER_DEADLINE_SECONDS": str(DEADLINE_SECONDS),
        }

    def start(self) -> None:
        """Create the tables and start the processes; returns once the API knows the DAGs."""
        self._home.mkdir(parents=True, exist_ok=True)
        command = str(self._binaries / "airflow")
        done = subprocess.run(
            [command, "db", "migrate"], env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        for part in PARTS:
            with (self._home / f"{part[0]}.log").open("wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        [command, *part], env=self._environment, stdout=log, stderr=log, start_new_session=True
                    )
                )
        until(self._answers, "Airflow's API", seconds=START_SECONDS)
        until(lambda: all(map(self._knows, ("nothing", "first", "late"))), "Airflow's DAGs", seconds=START_SECONDS)

    def stop(self) -> None:
        self._held.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._ask("POST", path, body)

    def put(self, path: str) -> dict[str, Any]:
        return self._ask("PUT", path)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=900) as answer:
                made: dict[str, Any] = json.loads(answer.read())
                return made
        except urllib.error.HTTPError as e:
            raise Refused(e.code, f"{method} {path}: {e.code} {e.read().decode()[:500]}") from e

    def backfill(self, first: date, last: date, limit: int, dag: str = "nothing") -> int:
        """Create a backfill of ``dag`` from ``first`` to ``last``; returns its id."""
        days = {"from_date": f"{first}T00:00:00Z", "to_date": f"{last}T00:00:00Z"}
        made = self.post("/api/v2/backfills", {"dag_id": dag, "max_active_runs": limit, **days})
        return int(made["id"])

    def query(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Query Airflow's database."""
        with psycopg.connect(self._dsn, row_factory=dict_row) as conn:
            return conn.execute(sql.encode(), values).fetchall()

    def _answers(self) -> bool:
        assert all(process.poll() is None for process in self._processes), f"a part ended: see {self._home}"
        try:
            self._token = self.get("/auth/token")["access_token"]
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def _knows(self, dag: str) -> bool:
        try:
            return not self.get(f"/api/v2/dags/{dag}")["is_paused"]
        except Refused as e:
            assert e.code == 404, e
            return False


@contextmanager
def running(binaries: Path, home: Path, owner_dsn: str, parallelism: int) -> Iterator[Airflow]:
    """An Airflow that stops at the end of the block."""
    made = Airflow(binaries, home, owner_dsn, parallelism)
    try:
        made.start()
        yield made
    finally:
        made.stop()
