"""The same work on an empty installation and after ten years of a hundred daily pipelines."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from tests.support.definitions import daily
from tests.support.history import finished
from tests.support.installation import Installation, until

from benchmarks.accept import planned
from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.orchestrate import orchestrated
from benchmarks.support.servers import IDLE_STARTER, installed, servers
from retrofill_core.bus.clients import producer
from retrofill_core.contract.backfills import BackfillCancelRequested
from retrofill_core.contract.topics import Topic

PIPELINES, DAYS = 100, 3650
REPEATS = int(os.environ.get("BENCH_REPEATS", "7"))
# Plans for each measurement, and their runs.
PLANS, ACCEPTED = 5, 1096
ORCHESTRATED = 3000
STARTS = 20
UNFINISHED = "SELECT id FROM backfill WHERE ended_at IS NULL"


def first_start(made: Installation, name: str) -> float:
    """Seconds from publishing a request for one run to its start, as recorded in the rows."""
    made.apply(daily(name))
    began = time.monotonic()
    id = made.request(name, "2020-01-01", "2020-01-01")
    # Poll more often than ``until`` does: the result is tens of milliseconds.
    while not made.value("SELECT count(*) FROM run WHERE backfill_id = %s AND started_at IS NOT NULL", id):
        assert time.monotonic() - began < 60, "it did not start"
    return time.monotonic() - began


class Side:
    """One of the two installations."""

    def __init__(self, made: Installation, *, history: bool) -> None:
        self.made = made
        if history:
            finished(made, PIPELINES, DAYS)
        made.start("backfill-planner")
        self._sender = producer(made.settings, "bench")
        planned(made, self._sender, 2)

    def accept(self) -> float:
        """Seconds to plan: the median of several plans."""
        seconds = sorted(planned(self.made, self._sender, ACCEPTED)[1] for _ in range(PLANS))
        return seconds[PLANS // 2]

    def start(self, repeat: int) -> float:
        """Seconds to the first start: the median of several requests, with nothing else to run."""
        self.made.start(IDLE_STARTER)
        self._cancel_all()
        first_start(self.made, f"warm-{repeat}")
        seconds = sorted(first_start(self.made, f"start-{repeat}-{n}") for n in range(STARTS))
        self.made.replicas.pop().stop()
        return seconds[STARTS // 2]

    def _cancel_all(self) -> None:
        for row in self.made.query(UNFINISHED):
            self.made.publish(Topic.BACKFILL_REQUESTS, row["id"], BackfillCancelRequested())
        until(lambda: not self.made.query(UNFINISHED), "what was planned is cancelled", seconds=60)

    def orchestrate(self, repeat: int) -> float:
        """Seconds per run."""
        return 1 / orchestrated(self.made, ORCHESTRATED, 1, f"orchestrate-{repeat}")


def run() -> Sequence[Figure]:
    """Alternate between the two installations."""
    with servers() as on, installed(on) as empty_made, installed(on) as old_made:
        empty, old = Side(empty_made, history=False), Side(old_made, history=True)
        pairs: dict[str, tuple[list[float], list[float]]] = {
            name: ([], []) for name in ("accept 1,096 runs", "start", "orchestrate 3,000 runs")
        }
        for repeat in range(REPEATS):
            for n, side in enumerate((empty, old)):
                pairs["accept 1,096 runs"][n].append(side.accept())
                pairs["start"][n].append(side.start(repeat))
                pairs["orchestrate 3,000 runs"][n].append(side.orchestrate(repeat))
    return [figure(name, "x", ratios(after, before), at_most=1.2) for name, (before, after) in pairs.items()]


BENCHMARK = Benchmark(
    "growth",
    "accept, start (request to first start, without Spark) and orchestrate with 365,000 finished runs in the tables",
    "the same on empty tables, in turn on the same servers",
    "at most 1.2 x",
    run,
)
