"""The way from one run to the next: trivial tasks on real warm drivers, without Spark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tests.support.costs import costs
from tests.support.installation import Installation
from tests.support.light import apply_trivial, backfill

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.servers import installed, servers

# (first day, last day) of each repeat, and their number.
YEARS = [(f"{year}-01-01", f"{year}-07-18") for year in (2011, 2013, 2014)]
DAYS = 199
DRIVERS = 2


def gaps(notes: Path) -> list[float]:
    """Milliseconds from the end of each task to the beginning of the next."""
    times = [tuple(map(float, line.split())) for line in notes.read_text().splitlines()]
    return [1000 * (later[0] - earlier[1]) for earlier, later in pairwise(times)]


def warm(made: Installation, pipeline: str) -> None:
    backfill(made, pipeline, "2010-01-01", "2010-01-10", f"{pipeline}-warm")


def run() -> Sequence[Figure]:
    """Measure runs one by one on one driver, then on two."""
    between, commits, appends, rates = [], [], [], []
    with servers() as on, installed(on) as made:
        for name in ("backfill-planner", "deadline-watcher", "callback-runner"):
            made.start(name)
        made.start("light-starter", RETROFILL_DRIVER_SLOTS=str(DRIVERS))
        notes = apply_trivial(made, "single", 1)
        both = apply_trivial(made, "both", DRIVERS)
        for pipeline in ("single", "both"):
            warm(made, pipeline)
        for first, last in YEARS:
            notes.write_text("")
            before = costs(made, on.home / "kafka")
            backfill(made, "single", first, last, f"single-{first}")
            each = costs(made, on.home / "kafka").since(before, DAYS)
            between.append(statistics.median(gaps(notes)))
            commits.append(each[0])
            appends.append(each[1])
        for first, last in YEARS:
            both.write_text("")
            backfill(made, "both", first, last, f"both-{first}")
            times = [float(time) for line in both.read_text().splitlines() for time in line.split()]
            rates.append(DAYS / (max(times) - min(times)))
    return [
        figure("end of a driver's work to the first user line of its next run, median", "ms", between, at_most=15),
        figure("Postgres commits a run, one by one", "", commits, at_most=8),
        figure("Kafka appends a run, one by one", "", appends, at_most=15),
        figure(f"trivial runs with {DRIVERS} drivers, one by one", "runs/s", rates, at_least=60),
    ]


BENCHMARK = Benchmark(
    "between",
    f"{DAYS} trivial runs of one backfill, on real drivers without Spark: the way from one run to the next",
    "nothing",
    "at most 15 ms, 8 commits and 15 appends a run; at least 60 runs/s on two drivers",
    run,
)
