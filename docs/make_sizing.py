"""Computes the tables of ``sizing.md`` from ``benchmarks/results.json``: ``python docs/make_sizing.py``."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_name("sizing.md")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results.json"
UNKNOWN = "not measured"

# What is assumed of the work.
TASKS_PER_RUN = 1
DEADLINES_PER_RUN = 1
RUN_SECONDS = 60
PEAK = 10  # times the mean
KEPT_DAYS = 90
KAFKA_DAYS = 7
KAFKA_REPLICAS = 3
ARMED = 10_000_000
# What is wanted: half of what was measured is in use at the peak, twice the drivers that are busy in the mean.
IN_USE = 0.5
DRIVERS = 2
DRIVERS_PER_REPLICA = 64
# Backfills a day and the runs of each: people ask for years, programs for what has just changed.
LOADS = {10: 365, 1_000: 30, 100_000: 3}
# Partitions are fixed by ``init``: enough for four times the replicas that are needed now.
GROWTH = 4
LEAST_PARTITIONS = 12
DAY = 86_400


class Measured:
    """Medians by benchmark and name of the figure; ``nan`` where the whole benchmark was not measured."""

    def __init__(self, results: Path) -> None:
        self._known = json.loads(results.read_text())

    def __call__(self, benchmark: str, name: str) -> float:
        """The median of a figure. Raises ``KeyError`` where its benchmark has none of this name."""
        if benchmark not in self._known:
            return math.nan
        values = {each["name"]: each["values"] for each in self._known[benchmark]["figures"]}
        return float(statistics.median(values[name]))


@dataclass(frozen=True)
class Load:
    """So many backfills a day, and what follows."""

    backfills: int
    runs_each: int
    measured: Measured

    @property
    def runs(self) -> int:
        """A day."""
        return self.backfills * self.runs_each

    @property
    def peak(self) -> float:
        """Runs a second."""
        return self.runs / DAY * PEAK

    @property
    def drivers(self) -> int:
        """Runs go on in parallel on so many."""
        return math.ceil(self.runs / DAY * RUN_SECONDS * DRIVERS)

    @property
    def postgres_bytes(self) -> float:
        """A day."""
        size = self.measured
        backfill = size("size", "backfill row") + size("size", "backfill_request row")
        run = (
            size("size", "run row, ended")
            + size("size", "backfill_interval row, planned")
            + TASKS_PER_RUN * size("size", "task_run row, ended")
            + DEADLINES_PER_RUN * size("size", "deadline row, planned")
        )
        return self.backfills * backfill + self.runs * run

    @property
    def kept_bytes(self) -> float:
        """A day, of what a purge leaves: the answers, and a run of each interval if each ran once."""
        size = self.measured
        backfill = size("size", "backfill row") + size("size", "backfill_request row")
        return self.backfills * backfill + self.runs * size("size", "run row, ended")

    @property
    def kafka_bytes(self) -> float:
        """A day, all replicas."""
        return self.runs * self.measured("size", "Kafka, all messages of a run") * KAFKA_REPLICAS

    @property
    def starter_share(self) -> float:
        """Of what was measured of the run-starter, at the peak."""
        return self.peak / self.measured("orchestrate", "10,000 runs in 100 backfills")

    @property
    def relay_share(self) -> float:
        """Of what was measured of the relay, at the peak; a service has one relay, however many replicas."""
        messages = self.measured("size", "messages of a run through the run-starter's relay")
        return self.peak * messages / self.measured("bus", "outbox and relay")

    @property
    def planner_share(self) -> float:
        """Of one shard that plans request after request, at the peak."""
        return self.backfills / DAY * PEAK * self.measured("accept", "1 runs") / 1000

    @property
    def starters(self) -> float:
        """Replicas of the run-starter: for the work of starting, and to host the drivers."""
        return _most(2, self.starter_share / IN_USE, self.drivers / DRIVERS_PER_REPLICA)

    @property
    def others(self) -> float:
        """Replicas of each of the other services; two for when one is away."""
        return _most(2, self.planner_share / IN_USE)

    @property
    def partitions(self) -> float:
        """Of each topic."""
        return _most(LEAST_PARTITIONS, math.ceil(GROWTH * self.starters / 12) * 12)


def _most(*values: float) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.ceil(max(known))


ROWS: Sequence[tuple[str, Callable[[Load], str]]] = (
    ("runs of each", lambda x: f"{x.runs_each:,}"),
    ("runs a day", lambda x: f"{x.runs:,}"),
    ("runs a second, mean and peak", lambda x: f"{number(x.runs / DAY)}, {number(x.peak)}"),
    ("drivers", lambda x: f"{x.drivers:,}"),
    ("of the run-starter's measured speed, at the peak", lambda x: share(x.starter_share)),
    ("of its relay's", lambda x: share(x.relay_share)),
    ("of one planner's shard", lambda x: share(x.planner_share)),
    ("partitions", lambda x: f"{x.partitions:,.0f}"),
    ("replicas of the run-starter", lambda x: f"{x.starters:,.0f}"),
    ("replicas of each other service", lambda x: f"{x.others:,.0f}"),
    ("Postgres, a day", lambda x: size(x.postgres_bytes)),
    (f"Postgres, purged after {KEPT_DAYS} days", lambda x: size(KEPT_DAYS * x.postgres_bytes)),
    ("what a purge leaves, a year", lambda x: size(365 * x.kept_bytes)),
    (f"Kafka, {KAFKA_DAYS} days, {KAFKA_REPLICAS} replicas", lambda x: size(KAFKA_DAYS * x.kafka_bytes)),
)


def loads(measured: Measured) -> str:
    """What each load takes."""
    each = [Load(backfills, runs, measured) for backfills, runs in LOADS.items()]
    head = [f"{load.backfills:,} backfills a day" for load in each]
    return table(["", *head], [[name, *(show(load) for load in each)] for name, show in ROWS])


def sizes(measured: Measured) -> str:
    """The figures that all the others come from."""
    figures = [
        ("a `backfill` row", "size", "backfill row", " bytes"),
        ("a `backfill_request` row", "size", "backfill_request row", " bytes"),
        ("a `run` row, planned", "size", "run row, planned", " bytes"),
        ("a `run` row, ended", "size", "run row, ended", " bytes"),
        ("a `backfill_interval` row", "size", "backfill_interval row, planned", " bytes"),
        ("a `task_run` row", "size", "task_run row, ended", " bytes"),
        ("an armed `deadline` row", "size", "deadline row, planned", " bytes"),
        ("an event that waits in an outbox", "size", "outbox row", " bytes"),
        ("all messages of a run in Kafka, one replica", "size", "Kafka, all messages of a run", " bytes"),
        (
            "messages of a run through the run-starter's relay",
            "size",
            "messages of a run through the run-starter's relay",
            "",
        ),
        ("a request for one run, until its answer", "accept", "1 runs", " ms"),
        ("a request for 100,000 runs", "accept", "100,000 runs", " ms"),
        (
            "runs that do nothing, one run-starter without drivers",
            "orchestrate",
            "10,000 runs in 100 backfills",
            " a second",
        ),
        ("events through one relay", "bus", "outbox and relay", " a second"),
        ("memory of the four services at rest", "idle", "memory of the four together", " MB"),
    ]
    rows = [[name, number(measured(*place), unit), f"`{place[0]}`"] for name, *place, unit in figures]
    return table(["what", "measured", "benchmark"], rows)


def deadlines(measured: Measured) -> str:
    """What ten million armed deadlines take."""
    counting = measured("size", "counting 100,000 armed deadlines for a gauge") * ARMED / 100_000 / 1000
    at_once = 10_000 / measured("deadline", "10,000 at once, 1,000,000 armed")
    rows = [
        ["rows with all their indexes", size(ARMED * measured("size", "deadline row, planned"))],
        ["and the runs that they are of", size(ARMED * measured("size", "run row, planned"))],
        [
            "from the moment to the event, 99th percentile, with 1,000,000 armed",
            number(measured("deadline", "p99 of 300, 1,000,000 armed"), " ms"),
        ],
        ["misses a second, when very many are due at the same time", number(at_once)],
        ["to count them for `retrofill_deadlines`, of 15 s", number(counting, " s")],
    ]
    return table(["", f"{ARMED:,} armed"], rows)


BLOCKS = {"sizes": sizes, "loads": loads, "deadlines": deadlines}


def number(value: float, unit: str = "") -> str:
    """Two digits that count, and all of a large number."""
    if math.isnan(value):
        return UNKNOWN
    return (f"{value:,.0f}" if value >= 10 else f"{value:.2g}") + unit


def share(value: float) -> str:
    """In percent."""
    return UNKNOWN if math.isnan(value) else "less than 1 %" if value < 0.01 else f"{value:.0%}".replace("%", " %")


def size(value: float) -> str:
    """Bytes as people say them."""
    if math.isnan(value):
        return UNKNOWN
    for unit, step in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= step:
            return number(value / step, f" {unit}")
    return number(value / 1e3, " kB")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page() -> str:
    """The page with the tables as they are to be."""
    measured = Measured(RESULTS)
    text = PAGE.read_text()
    for name, make in BLOCKS.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert block.search(text), f"{PAGE.name} has no place for {name}"
        made = make(measured)
        text = block.sub(lambda found, made=made: f"{found[1]}\n{made}\n{found[2]}", text)
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
