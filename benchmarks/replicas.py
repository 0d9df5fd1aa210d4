"""One backfill on the drivers of one replica and of three, with tasks that wait for others."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.installation import until
from tests.support.light import apply_trivial, backfill

from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.support.servers import installed, servers

REPLICAS = 3
DRIVERS = 2
DAYS = 60
LAST = "2010-03-01"
TASK_SECONDS = 0.5
REPEATS = 3


def rates(replicas: int) -> list[float]:
    """Runs per second of a backfill, from its first task's begin to its last one's end."""
    found = []
    with servers() as on, installed(on) as made:
        made.start("backfill-planner")
        for _ in range(replicas):
            made.start("light-starter", RETROFILL_DRIVER_SLOTS=str(DRIVERS))
        until(lambda: made.value("SELECT count(*) FROM seat WHERE warm") == replicas * DRIVERS, "warm", seconds=120)
        for repeat in range(REPEATS):
            name = f"waits{repeat}"
            notes = apply_trivial(made, name, DRIVERS * REPLICAS, seconds=TASK_SECONDS)
            backfill(made, name, "2010-01-01", LAST, name)
            times = [float(time) for line in notes.read_text().splitlines() for time in line.split()]
            assert len(times) == 2 * DAYS
            found.append(DAYS / (max(times) - min(times)))
    return found


def run() -> Sequence[Figure]:
    """Measure one replica, then three."""
    one, three = rates(1), rates(REPLICAS)
    return [
        figure(f"1 replica with {DRIVERS} drivers", "runs/s", one),
        figure(f"{REPLICAS} replicas with {DRIVERS} drivers each", "runs/s", three),
        figure(f"{REPLICAS} replicas beside 1", "x", ratios(three, one), at_least=2.7),
    ]


BENCHMARK = Benchmark(
    "replicas",
    f"{DAYS} runs of one backfill, each a task that waits for {TASK_SECONDS} s, on real warm drivers without Spark",
    f"the same on one replica of the run-starter with {DRIVERS} drivers",
    f"at least 2.7 x with {REPLICAS} replicas",
    run,
)
