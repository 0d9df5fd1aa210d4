"""Pipelines to look at: days, hours and months, with tasks that take a moment and some days that fail."""

from __future__ import annotations

import json
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from retrofill import Deadline, Pipeline, Reference

BAD_DAYS = {"2024-02-29", "2024-05-01", "2024-05-02", "2024-09-17"}

orders = Pipeline(
    "orders_daily",
    schedule="@daily",
    start="2022-01-01",
    timezone="Europe/Berlin",
    max_active_runs=3,
    batch_size=7,
    deadlines=[
        Deadline("slow_day", Reference.RUN_STARTED_AT, timedelta(seconds=3), callback="page_oncall"),
        Deadline("late_day", Reference.RUN_QUEUED_AT, timedelta(hours=6)),
    ],
)


@orders.task
def extract(run: Any) -> None:
    run.log.info("reading orders of %s", f"{run.interval.start:%Y-%m-%d}")
    work(run)
    run.log.info("%s orders in 12 files", f"{random.randint(900, 1400):,}")


@orders.task(after=extract)
def clean(run: Any) -> None:
    work(run)
    run.log.info("dropped 3 duplicates, 0 rows without a shop")


@orders.task(after=clean, retries=1, retry_delay=0.1)
def totals(run: Any) -> None:
    work(run)
    check(f"{run.interval.start:%Y-%m-%d}", {"shop 4": 0})


@orders.task(after=clean)
def customers(run: Any) -> None:
    work(run)


@orders.task(after=[totals, customers])
def report(run: Any) -> None:
    work(run)
    run.log.info("wrote 41 rows")


def page(context: dict[str, Any], **kwargs: Any) -> None:
    """The callback ``page_oncall``, whose pager does not always answer."""
    if context["deadline_id"] % 3 == 0:
        raise ConnectionError("the pager did not answer within 5 s")


def check(day: str, sales: dict[str, int]) -> None:
    """Raise ``ValueError`` for the bad days."""
    if day in BAD_DAYS:
        missing = [shop for shop, amount in sales.items() if amount == 0]
        raise ValueError(f"no sales on {day} in {', '.join(missing)}: the export is incomplete")


def work(run: Any) -> None:
    # Simulates a job; some days are slow.
    time.sleep(0.02 if run.interval.start.day % 11 else 0.7)


sensors = Pipeline(
    "sensors_hourly", schedule="@hourly", start="2023-01-01", timezone="Europe/Berlin", max_active_runs=2, batch_size=24
)


@sensors.task
def compact(run: Any) -> None:
    time.sleep(0.01)
    if f"{run.interval.start:%m-%d}" == "03-05" and run.interval.start.hour in range(6, 10):
        raise OSError("the day's files are on a disk that does not answer")
    run.log.info("compacted %s", run.interval.start)


invoices = Pipeline("invoices_monthly", schedule="@monthly", start="2018-01-01", max_active_runs=2)


@invoices.task
def collect(run: Any) -> None:
    time.sleep(0.05)


@invoices.task(after=collect)
def send(run: Any) -> None:
    time.sleep(0.05)


prices = Pipeline(
    "prices_daily", schedule="@daily", start="2024-01-01", timezone="Europe/Berlin", max_active_runs=2, batch_size=10
)


@prices.task
def quote(run: Any) -> None:
    """Prices of a day, to be reviewed before readers see them: a correction, and a day that has more of them."""
    day = run.interval.start.day
    folder = Path(run.stage(f"{run.conf['out']}/day={run.interval.start:%Y-%m-%d}"))
    folder.mkdir(parents=True, exist_ok=True)
    corrected = bool(run.conf.get("corrected")) and day > 6
    rows = 90 + day + (14 if corrected and day == 17 else 0)
    lines = [json.dumps({"id": n, "price": (n * 37 + day) % 100 + (0.5 if corrected else 0)}) for n in range(rows)]
    (folder / "prices.json").write_text("\n".join(lines) + "\n")
