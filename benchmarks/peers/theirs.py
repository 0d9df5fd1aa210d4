"""Measures Airflow through its API and its tables."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta

from tests.support.installation import until

from benchmarks.peers.airflow import Airflow

FIRST = date(2000, 1, 1)
SECONDS = 900.0


def accept(airflow: Airflow, runs: int, repeat: int) -> float:
    """Seconds until the API has replied and all runs of a backfill exist. Cancels it afterwards."""
    first = FIRST + timedelta(days=1200 * (repeat + 1))
    last = first + timedelta(days=runs - 1)
    began = time.monotonic()
    id = airflow.backfill(first, last, 4)
    there = "SELECT count(*) AS n FROM backfill_dag_run WHERE backfill_id = %s"
    until(lambda: airflow.query(there, id)[0]["n"] == runs, "Airflow's runs", seconds=SECONDS)
    seconds = time.monotonic() - began
    airflow.put(f"/api/v2/backfills/{id}/cancel")
    _ended(airflow, id)
    return seconds


def first_run(airflow: Airflow, repeat: int) -> float:
    """Seconds from requesting a backfill of one day to the first line of its task."""
    day = FIRST - timedelta(days=30 + repeat)
    asked = time.time()
    id = airflow.backfill(day, day, 4, dag="first")
    _ended(airflow, id)
    (row,) = airflow.query(_TASKS, id)
    assert row["succeeded"] == 1, row
    return float(airflow.notes.read_text()) - asked


def runs_a_second(airflow: Airflow, runs: int, repeat: int) -> float:
    """Runs per second, from the first task start to the last end."""
    first = FIRST - timedelta(days=3000 + 1000 * repeat)
    id = airflow.backfill(first, first + timedelta(days=runs - 1), 64)
    _ended(airflow, id)
    (row,) = airflow.query(_TASKS, id)
    assert row["succeeded"] == runs, row
    return float(runs / (row["ended"] - row["began"]).total_seconds())


def deadlines(airflow: Airflow, count: int) -> list[float]:
    """Seconds from each missed deadline to its callback."""
    airflow.notes.write_text("")
    asked = datetime.now(UTC)
    for _ in range(count):
        airflow.post("/api/v2/dags/late/dagRuns", {"logical_date": None})

    def noted() -> list[float]:
        return sorted(float(line) for line in airflow.notes.read_text().split())

    until(lambda: len(noted()) == count, "Airflow's callbacks", seconds=SECONDS)
    due = airflow.query("SELECT deadline_time FROM deadline WHERE deadline_time > %s ORDER BY 1", asked)
    moments = [row["deadline_time"].timestamp() for row in due]
    running = "SELECT count(*) AS n FROM dag_run WHERE dag_id = 'late' AND end_date IS NULL"
    until(lambda: airflow.query(running)[0]["n"] == 0, "the end of Airflow's runs", seconds=SECONDS)
    return [at - moment for at, moment in zip(noted(), moments, strict=True)]


_TASKS = """
SELECT min(t.start_date) AS began, max(t.end_date) AS ended, count(*) FILTER (WHERE t.state = 'success') AS succeeded
FROM backfill_dag_run AS b JOIN dag_run AS r ON r.id = b.dag_run_id
     JOIN task_instance AS t ON t.dag_id = r.dag_id AND t.run_id = r.run_id WHERE b.backfill_id = %s
"""


def _ended(airflow: Airflow, id: int) -> None:
    """Wait for the end: Airflow runs one backfill per DAG at a time."""
    ended = "SELECT completed_at IS NOT NULL AS ended FROM backfill WHERE id = %s"
    until(lambda: airflow.query(ended, id)[0]["ended"], f"the end of Airflow's backfill {id}", seconds=SECONDS)
