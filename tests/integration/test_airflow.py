"""The example's operator in a real Airflow (that of ``make bench-peers``), against a console with tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.console import start_console
from tests.support.definitions import daily
from tests.support.installation import ROOT, Installation
from tests.support.servers import Servers

from retrofill_core.setting_types import Role
from retrofill_tools.client.tokens import add, make

# Airflow is installed once, if it is not there, and starts slowly.
pytestmark = pytest.mark.long
PEERS, LOCK = ROOT / ".venv-peers", ROOT / "benchmarks" / "peers" / "requirements.lock"
FAILING = "2020-01-03,2020-01-04"
DAG = """
import json, sys
from datetime import datetime, timedelta
from airflow.sdk import DAG
from retrofill_operator import RetrofillBackfillOperator

with DAG("days", schedule=None, start_date=datetime(2020, 1, 1)) as dag:
    for name, (first, last) in {
        "good": ("2022-01-01", "2022-01-03"),
        "bad": ("2020-01-02", "2020-01-04"),
        "of_the_run": ("{{ ds }}", "{{ macros.ds_add(ds, 1) }}"),
    }.items():
        RetrofillBackfillOperator(
            task_id=name, pipeline="p", start=first, end=last, options={"max_active_runs": 2}, poll_seconds=0.2
        )

if __name__ == "__main__":
    run = dag.test(logical_date=datetime.fromisoformat("2023-05-06T00:00:00+00:00"))
    states = {each.task_id: str(each.state) for each in run.get_task_instances()}
    with open(sys.argv[1], "w") as out:
        json.dump({"run_id": run.run_id, "states": states}, out)
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of Airflow's environment."""
    found = PEERS / "bin" / "python"
    if not found.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        quiet = ("--quiet", "--disable-pip-version-check", "--require-hashes")
        subprocess.run([found, "-m", "pip", "install", *quiet, "-r", str(LOCK)], check=True)
    return found


@pytest.fixture(scope="module")
def place(servers: Servers) -> Iterator[Installation]:
    made = servers.installation()
    made.start("backfill-planner")
    made.start("instant-starter", INSTANT_FAIL=FAILING)
    made.apply(daily(max_active_runs=4))
    yield made
    made.close()


def test_an_operator_defers_until_its_backfill_has_ended(python: Path, place: Installation, tmp_path: Path) -> None:
    secret, token = make("airflow", Role.PUBLISH)
    add(tmp_path / "tokens", token)
    url = start_console(place, RETROFILL_CONSOLE_TOKENS=str(tmp_path / "tokens")).url
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "days.py").write_text(DAG)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "RETROFILL"))},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_RETROFILL": json.dumps({"conn_type": "http", "host": url, "password": secret}),
        # Of ours, the client alone; nothing else of it is there.
        "PYTHONPATH": os.pathsep.join(map(str, [_only_the_client(tmp_path), ROOT / "examples" / "airflow"])),
    }

    def airflow(*words: str) -> str:
        done = subprocess.run([str(python), *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    airflow("-m", "airflow", "db", "migrate")
    said = airflow(str(tmp_path / "dags" / "days.py"), str(tmp_path / "result.json"))
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    assert result["states"] == {"good": "success", "of_the_run": "success", "bad": "failed"}, said[-3000:]
    rows = place.query(
        "SELECT id, triggered_by, state, runs, lower(covers)::date::text AS first FROM backfill ORDER BY id"
    )
    ids = {name: f"days.{name}.{result['run_id']}.-1.1" for name in ("bad", "good", "of_the_run")}
    assert [(row["id"], row["triggered_by"], row["state"], row["runs"], row["first"]) for row in rows] == [
        (ids["bad"], "airflow", "failed", 3, "2020-01-02"),
        (ids["good"], "airflow", "succeeded", 3, "2022-01-01"),
        (ids["of_the_run"], "airflow", "succeeded", 2, "2023-05-06"),
    ]
    assert f"BackfillFailed: backfill {ids['bad']} of p failed (2 failed, 1 succeeded); first: " in said.replace(
        "\n", " "
    )
    assert secret not in said


def _only_the_client(folder: Path) -> Path:
    (folder / "site").mkdir()
    (folder / "site" / "retrofill_client").symlink_to(ROOT / "shared" / "retrofill_client")
    return folder / "site"
