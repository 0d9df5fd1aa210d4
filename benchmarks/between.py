"""The way from one run to the next: trivial tasks on real warm drivers, without Spark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.support.costs import costs
from tests.support.installation import Installation
from tests.support.light import apply_trivial, backfill

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.cpu import Used
from benchmarks.support.cpu import figures as cpu_figures
from benchmarks.support.servers import installed, servers

# (first day, last day) of each repeat, and their number.
YEARS = [(f"{year}-01-01", f"{year}-07-18") for year in (2011, 2013, 2014)]
DAYS = 199
DRIVERS = 2
BATCH = 50


def gaps(notes: Path) -> list[float]:
    """Milliseconds from the end of each task to the beginning of the next."""
    times = [tuple(map(float, line.split())) for line in notes.read_text().splitlines()]
    return [1000 * (later[0] - earlier[1]) for earlier, later in pairwise(times)]


@dataclass
class Measured:
    """Of each repeat: the median gap between two runs (ms), commits and appends a run, runs/s, CPU."""

    gaps: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    appends: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)


def measured(made: Installation, home: Path, pipeline: str, drivers: int, batch: int) -> Measured:
    """Backfills of a trivial pipeline."""
    notes = apply_trivial(made, pipeline, drivers, batch)
    backfill(made, pipeline, "2010-01-01", "2010-01-10", f"{pipeline}-warm")
    found, log = Measured(), home / "kafka"
    for first, last in YEARS:
        notes.write_text("")
        before, used = costs(made, log), Used(home, made.replicas)
        backfill(made, pipeline, first, last, f"{pipeline}-{first}")
        found.cpu.append(Used(home, made.replicas).since(used, DAYS))
        commits, appends = costs(made, log).since(before, DAYS)
        found.commits.append(commits)
        found.appends.append(appends)
        found.gaps.append(statistics.median(gaps(notes)))
        times = [float(time) for line in notes.read_text().splitlines() for time in line.split()]
        found.rates.append(DAYS / (max(times) - min(times)))
    return found


def run() -> Sequence[Figure]:
    """Measure runs one by one on one driver, then on two, then in batches on two."""
    with servers() as on, installed(on) as made:
        for name in ("backfill-planner", "deadline-watcher", "callback-runner"):
            made.start(name)
        made.start("light-starter", RETROFILL_DRIVER_SLOTS=str(DRIVERS))
        single = measured(made, on.home, "single", 1, 1)
        both = measured(made, on.home, "both", DRIVERS, 1)
        batches = measured(made, on.home, "batches", DRIVERS, BATCH)
    return [
        figure("end of a driver's work to the first user line of its next run, median", "ms", single.gaps, at_most=15),
        figure("Postgres commits a run, one by one", "", single.commits, at_most=8),
        figure("Kafka appends a run, one by one", "", single.appends, at_most=15),
        figure(f"trivial runs with {DRIVERS} drivers, one by one", "runs/s", both.rates, at_least=60),
        figure(f"trivial runs with {DRIVERS} drivers, in batches of {BATCH}", "runs/s", batches.rates, at_least=300),
        figure(f"Postgres commits a run, in batches of {BATCH}", "", batches.commits, at_most=2),
        figure(f"Kafka appends a run, in batches of {BATCH}", "", batches.appends, at_most=2),
        *cpu_figures("a run one by one", both.cpu),
        *cpu_figures("a run in batches", batches.cpu),
    ]


BENCHMARK = Benchmark(
    "between",
    f"{DAYS} trivial runs of one backfill, on real drivers without Spark: the way from one run to the next",
    "nothing",
    "at most 15 ms, 8 commits and 15 appends a run, 2 in batches; at least 60 runs/s on two drivers, 300 in batches",
    run,
)
