"""A DAG that reprocesses the last seven days every Monday, by Retrofill: one task, which occupies no worker while it waits."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG
from retrofill_operator import RetrofillBackfillOperator

with DAG("reprocess_flights", schedule="0 6 * * MON", start_date=datetime(2024, 1, 1), catchup=False) as dag:
    RetrofillBackfillOperator(
        task_id="last_week",
        pipeline="flights",
        start="{{ macros.ds_add(ds, -7) }}",
        end="{{ macros.ds_add(ds, -1) }}",
        options={"reprocess": "completed", "max_active_runs": 4},
        retries=2,
        retry_delay=timedelta(minutes=10),
    )
