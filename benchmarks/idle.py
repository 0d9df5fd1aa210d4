"""The cost of the four services when there is nothing to do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.installation import Installation

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.servers import IDLE_STARTER, installed, servers

SERVICES = ("backfill-planner", IDLE_STARTER, "deadline-watcher", "callback-runner")
SETTLE_SECONDS = 15.0
WINDOW_SECONDS = 20.0
REPEATS = 3


@dataclass(frozen=True)
class Reading:
    """Usage of all services and of the database. All fields except ``memory`` are counters."""

    at: float
    memory: float  # bytes; shared pages are counted once
    cpu: float  # seconds
    switches: int
    transactions: int

    @classmethod
    def now(cls, made: Installation) -> Reading:
        processes = [psutil.Process(replica.process.pid) for replica in made.replicas]
        return cls(
            time.monotonic(),
            sum(process.memory_full_info().pss for process in processes),
            sum(process.cpu_times().user + process.cpu_times().system for process in processes),
            sum(_voluntary_switches(process.pid) for process in processes),
            made.value("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"),
        )


def _voluntary_switches(pid: int) -> int:
    """Voluntary context switches of all threads: each is one wake-up."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def run() -> Sequence[Figure]:
    """Measure several windows in sequence."""
    memory, cpu, switches, transactions = [], [], [], []
    with servers() as on, installed(on) as made:
        for service in SERVICES:
            made.start(service)
        time.sleep(SETTLE_SECONDS)  # nothing should happen meanwhile
        before = Reading.now(made)
        for _ in range(REPEATS):
            time.sleep(WINDOW_SECONDS)
            after = Reading.now(made)
            seconds = after.at - before.at
            memory.append(after.memory / 1e6)
            cpu.append(100 * (after.cpu - before.cpu) / seconds)
            switches.append((after.switches - before.switches) / seconds)
            # Subtract the transaction of the reading itself.
            transactions.append((after.transactions - before.transactions - 1) / seconds)
            before = after
    return [
        figure("memory of the four together", "MB", memory, at_most=350),
        figure("CPU of the four together, of one core", "%", cpu, at_most=2),
        figure("wake-ups of all threads", "1/s", switches),
        figure("transactions in Postgres", "1/s", transactions),
    ]


BENCHMARK = Benchmark(
    "idle",
    "memory (proportional set size), CPU time, voluntary context switches and transactions of the four services at rest; "
    "the run-starter without drivers",
    "nothing",
    "at most 350 MB together and less than 2 % of one core",
    run,
)
