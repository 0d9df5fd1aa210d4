"""A plan of 500,000 runs with and without an alert: time, memory and idle time in transaction."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence

import psycopg

from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.support.servers import installed, servers

RUNS = 500_000
REPEATS = 3
SAMPLE_SECONDS = 0.02
_SILENT = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0) FROM pg_stat_activity
WHERE application_name = %s AND state = 'idle in transaction'
"""


class Silence:
    """Samples how long sessions with this name are idle in a transaction, as seen by Postgres."""

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn, self._name = dsn, name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.longest = 0.0

    def __enter__(self) -> Silence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self._stop.wait(SAMPLE_SECONDS):
                row = conn.execute(_SILENT, [self._name]).fetchone()
                assert row is not None
                self.longest = max(self.longest, float(row[0]))


def planned(owner: str, planner: str, runs: int, alerts: int) -> dict[str, float]:
    """Run one plan in its own process.

    Returns ``seconds``, ``grown`` (MB above the memory before) and ``silent`` (seconds).
    """
    name = f"plan-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", "benchmarks.support.plan", planner, name, str(runs), str(alerts)]
    with Silence(owner, name) as silence:
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return {**found, "silent": silence.longest}


def run() -> Sequence[Figure]:
    """Alternate, so that both sides see the same machine."""
    with servers() as on, installed(on) as made:
        owner, planner = made.settings.dsn_of("owner"), made.settings.dsn_of("backfill-planner")
        bare, armed, small = [], [], []
        for _ in range(REPEATS):
            bare.append(planned(owner, planner, RUNS, 0))
            armed.append(planned(owner, planner, RUNS, 1))
            small.append(planned(owner, planner, RUNS // 10, 1))
    seconds = [each["seconds"] for each in armed]
    return [
        figure(f"{RUNS:,} runs", "s", [each["seconds"] for each in bare]),
        figure(f"{RUNS:,} runs with an alert", "s", seconds),
        figure("with an alert beside without", "x", ratios(seconds, [each["seconds"] for each in bare]), at_most=1.5),
        figure(f"memory that {RUNS:,} runs with an alert add", "MB", [each["grown"] for each in armed], at_most=150),
        figure(f"memory that {RUNS // 10:,} add", "MB", [each["grown"] for each in small]),
        figure("longest silence inside of the transaction", "s", [each["silent"] for each in armed], at_most=1.0),
    ]


BENCHMARK = Benchmark(
    "plan",
    "the transaction of the largest plan that the settings allow, with one alert of every run",
    "the same plan without an alert, in turn",
    "at most 1.5 x the plan without; at most 150 MB; never a second without a statement",
    run,
)
