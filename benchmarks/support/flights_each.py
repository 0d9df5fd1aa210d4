"""The demo's tasks as a pipeline that processes its days one by one."""

from __future__ import annotations

from pipeline import delays, quality  # type: ignore[import-not-found]  # a file of the example

from retrofill import Pipeline

each = Pipeline(
    "flights_each",
    schedule="@daily",
    start="2013-01-01",
    end="2013-12-31",
    timezone="America/New_York",
    max_active_runs=4,
    batch_size=30,
)
each.task(delays)
each.task(after=delays)(quality)
