"""Airflow's three DAGs: one does nothing, one records its first line, one misses its deadline."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, AsyncCallback, DeadlineAlert, DeadlineReference, task
from noted import note_the_time

SECONDS = float(os.environ["PEER_DEADLINE_SECONDS"])

with DAG("nothing", schedule="@daily", start_date=datetime(1980, 1, 1), catchup=False, max_active_runs=64):

    @task
    def only() -> None:
        """Does nothing."""

    only()

with DAG("first", schedule="@daily", start_date=datetime(1980, 1, 1), catchup=False):

    @task
    def notes_its_first_line() -> None:
        """Records when user code began."""
        Path(os.environ["PEER_NOTES"]).write_text(repr(time.time()))

    notes_its_first_line()

with DAG(
    "late",
    schedule=None,
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=SECONDS),
        callback=AsyncCallback(note_the_time),
    ),
):

    @task
    def outlasts_its_deadline() -> None:
        """Runs past its deadline, so that the miss can be measured."""
        time.sleep(SECONDS * 2)

    outlasts_its_deadline()
