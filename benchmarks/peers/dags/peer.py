"""What Airflow is measured with: a daily DAG of one task that does nothing, and one whose deadline is missed while it runs."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta

from airflow.sdk import DAG, AsyncCallback, DeadlineAlert, DeadlineReference, task
from noted import note_the_time

SECONDS = float(os.environ["PEER_DEADLINE_SECONDS"])

with DAG("nothing", schedule="@daily", start_date=datetime(1980, 1, 1), catchup=False, max_active_runs=64):

    @task
    def only() -> None:
        """Nothing."""

    only()

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
        """Runs until the deadline is past: a measurement needs it to be missed."""
        time.sleep(SECONDS * 2)

    outlasts_its_deadline()
