"""The demo: a backfill of 2013 on the embedded stack, compared with pandas and a bare Spark loop.

Run by ``make demo`` (``DAYS=30``: fewer days; ``TABLE=iceberg`` or ``delta``: into a table; ``KEEP=1``:
keep the stack running).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from outputs import Output, output_of
from prepare import prepare, read_flights
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
FIRST = date(2013, 1, 1)
# What the same costs without Retrofill is measured with so many days.
LOOP_DAYS = 16
JOB_DAYS = 90
WARM_DAYS = 4
console = Console()


def retrofill(*args: str, show: bool = False, check: bool = True) -> Any:
    """Run the CLI and return its JSON document, or print its output with ``show``."""
    command = [str(Path(sys.executable).with_name("retrofill")), *args]
    if show:
        subprocess.run(command, check=check)
        return None
    done = subprocess.run([*command, "--json"], check=False, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise SystemExit(f"retrofill {' '.join(args)}: {done.stderr.strip()}")
    return json.loads(done.stdout) if done.stdout.strip() else {}


def say(text: str) -> None:
    """Print a heading."""
    console.rule(f"[bold]{text}", align="left")


@contextmanager
def session(remote: str) -> Iterator[Any]:
    """A session of the stack's Spark, for the duration of the block."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).create()
    try:
        yield spark
    finally:
        spark.stop()


def bare(spark: Any, output: Output, days: list[str], parallel: int) -> tuple[float, float]:
    """Seconds per day of the same transformation without Retrofill, of a sample: a loop, and one job.

    The loop processes ``parallel`` days at a time, in one Spark session.
    """
    from pipeline import check_days, delays_of_days

    data = output.conf["data"]

    def process(chosen: list[str]) -> None:
        figures = delays_of_days(spark, data, chosen)
        check_days(spark, data, chosen, output.write_bare(spark, figures, chosen))

    sample = days[:: max(1, len(days) // LOOP_DAYS)][:LOOP_DAYS]
    together = days[:JOB_DAYS]
    with ThreadPoolExecutor(parallel) as threads:
        list(threads.map(process, [[day] for day in sample[:WARM_DAYS]]))
        began = time.monotonic()
        list(threads.map(process, [[day] for day in sample]))
        loop = time.monotonic() - began
    began = time.monotonic()
    process(together)
    job = time.monotonic() - began
    return loop / len(sample), job / len(together)


class Source:
    """The source file of one day, which can be broken and mended."""

    def __init__(self, data: Path, day: str) -> None:
        self._file = data / "flights" / f"day={day}" / "part.parquet"
        # Spark ignores files whose names begin with an underscore.
        self._good = self._file.with_name("_part.parquet")

    def corrupt(self) -> None:
        if not self._good.exists():
            self._file.rename(self._good)
        self._file.write_bytes(b"not Parquet")

    def mend(self) -> None:
        if self._good.exists():
            self._good.replace(self._file)


def compare(found: pd.DataFrame, days: list[str]) -> int:
    """Number of flights in the published figures; raises if a day differs from the pandas computation."""
    source = read_flights()
    source = source[source["day"].isin(days)]
    expected = (
        source.assign(cancelled=source["dep_time"].isna())
        .groupby(["day", "carrier"])
        .agg(
            flights=("carrier", "size"),
            cancelled=("cancelled", "sum"),
            mean_dep_delay=("dep_delay", "mean"),
            mean_arr_delay=("arr_delay", "mean"),
        )
        .reset_index()
    )
    order = ["day", "carrier"]
    pd.testing.assert_frame_equal(
        expected.sort_values(order, ignore_index=True),
        found[expected.columns].astype({"day": str}).sort_values(order, ignore_index=True),
        check_dtype=False,
        rtol=1e-9,
    )
    return int(found["flights"].sum())


def backfill(days: list[str], output: Output, reprocess: str) -> dict[str, Any]:
    """Run the backfill with live progress, and return the final ``backfill show`` document."""
    id = f"flights-{reprocess}-{int(time.time())}"
    retrofill(
        "backfill", "create", "flights_daily", "--from", days[0], "--to", days[-1], "--id", id,
        "--reprocess", reprocess, "--conf", json.dumps(output.conf), "--watch", show=True, check=False,
    )  # fmt: skip
    return dict(retrofill("backfill", "show", id))


def seconds_of(shown: dict[str, Any]) -> float:
    """Seconds from a backfill's request to its end."""
    ended, requested = (datetime.fromisoformat(shown[name]) for name in ("ended_at", "requested_at"))
    return (ended - requested).total_seconds()


def beside(theirs: float, ours: float) -> str:
    """How the time that something else needs for a day compares with ours."""
    return f"{theirs / ours:.1f} × slower" if theirs >= ours else f"{ours / theirs:.1f} × faster"


def miss_a_deadline(pages: Path) -> tuple[int, int]:
    """Run an interval that is late on purpose; returns its missed deadlines and callback calls."""
    id = f"late-{int(time.time())}"
    retrofill(
        "backfill", "create", "flights_late_report", "--from", "2013-01-01", "--to", "2013-01-01", "--id", id,
        "--reprocess", "completed", "--conf", json.dumps({"seconds": 4}), "--watch", show=True,
    )  # fmt: skip
    until = time.monotonic() + 30
    while time.monotonic() < until:
        rows = retrofill("callbacks", "list", "--backfill", id)
        if rows and all(row["state"] == "succeeded" for row in rows):
            break
    missed = retrofill("deadlines", "list", "--backfill", id, "--state", "missed")
    # Calls for the other backfill's bad day may come meanwhile.
    calls = [json.loads(line)["context"] for line in pages.read_text().splitlines()] if pages.exists() else []
    return len(missed), sum(call["backfill_id"] == id for call in calls)


def main() -> int:
    """Run the demo; exit status 1 if the result is wrong."""
    options = argparse.ArgumentParser()
    options.add_argument("--days", type=int, default=365)
    options.add_argument("--table", choices=("folder", "iceberg", "delta"), default="folder")
    options.add_argument("--keep", action="store_true")
    args = options.parse_args()
    days = [(FIRST + timedelta(days=n)).isoformat() for n in range(max(1, min(args.days, 365)))]
    home = Path(os.environ.setdefault("RETROFILL_HOME", ".retrofill")).absolute()
    home.mkdir(exist_ok=True)
    data, pages = home / "flights", home / "pages.jsonl"
    os.environ["RETROFILL_CALLBACKS"] = json.dumps({"page_oncall": "callbacks:page_oncall"})
    os.environ["FLIGHTS_PAGES"] = str(pages)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    output = output_of(args.table, data)
    output.prepare_spark()
    began = time.monotonic()
    try:
        say("Embedded stack, and the flights of 2013 as Parquet")
        # The servers wait for each other while they start.
        with ThreadPoolExecutor(1) as beside:
            prepared = beside.submit(prepare, data)
            retrofill("up", show=True)
            prepared.result()
        for day in days:
            # If the last run was interrupted.
            Source(data, day).mend()
        console.print((data / "MADE").read_text().strip())
        return run(days, data, output, pages, began)
    finally:
        if not args.keep:
            say("Stopping the stack")
            retrofill("down", show=True)


def run(days: list[str], data: Path, output: Output, pages: Path, began: float) -> int:
    status = retrofill("status")
    remote = status["spark"]["remote"]
    with session(remote) as spark:
        output.create(spark)
    retrofill("pipelines", "apply", str(HERE / "pipeline.py"), show=True)
    bad = days[len(days) // 2]
    source = Source(data, bad)
    say(f"Backfill: {len(days)} days, of which {bad} has a corrupt source")
    source.corrupt()
    try:
        year = backfill(days, output, "completed")
    finally:
        source.mend()
    say(f"{bad} is mended: the same request again, for failed days")
    again = backfill(days, output, "failed")
    say("A deadline missed on purpose")
    missed, called = miss_a_deadline(pages)
    expected = int(read_flights()["day"].isin(days).sum())
    parallel = int(os.environ.get("RETROFILL_DRIVER_SLOTS", "2"))
    with session(remote) as spark:
        flights = compare(output.read(spark, days), days)
        say("The same without Retrofill")
        loop, job = bare(spark, output, days, parallel)
    say("Summary")
    wall = seconds_of(year)
    each = wall / len(days)
    error = year["failed_runs"][0]["error"] if year["failed_runs"] else {}
    table = Table(show_header=False, box=None)
    for name, value in (
        ("runs", ", ".join(f"{n} {state}" for state, n in year["by_state"].items())),
        ("the bad day", f"{error.get('type')}: {str(error.get('message'))[:100]}"),
        ("asked again", f"{again['runs']} run, {seconds_of(again):.1f} s"),
        ("backfill", f"{wall:.1f} s, {len(days) / wall:.2f} runs/s, {each:.3f} s per day"),
        ("bare Spark loop", f"{loop:.3f} s per day, {parallel} at a time: {beside(loop, each)}"),
        (
            "bare Spark job",
            f"{job:.3f} s per day, {min(len(days), JOB_DAYS)} days, none of them bad: {beside(job, each)}",
        ),
        ("flights", f"{flights:,} in the output, {expected:,} in the source; every day equal to pandas"),
        ("they are in", output.conf.get("table", str(data / "delays"))),
        ("deadline", f"{missed} missed on purpose, its callback called {called} time(s)"),
        ("total", f"{time.monotonic() - began:.0f} s"),
    ):
        table.add_row(name, value)
    console.print(table)
    console.print("\nExplore further (KEEP=1 keeps the stack running):")
    console.print(f"  .venv/bin/retrofill backfill show {year['id']}")
    console.print(
        f"  kcat -b {status['kafka']['bootstrap_servers']} -t {status['topic_prefix']}deadline-missed -C -e "
        "-X isolation.level=read_committed",
        soft_wrap=True,
    )
    states = {"failed": 1, "succeeded": len(days) - 1} if len(days) > 1 else {"failed": 1}
    good = year["by_state"] == states and again["by_state"] == {"succeeded": 1} and year["failed_runs"]
    return 0 if good and flights == expected and (missed, called) == (1, 1) else 1


if __name__ == "__main__":
    sys.exit(main())
