"""Delay of deadline misses with a thousand or a million armed, and with ten thousand at once."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg
from confluent_kafka import Consumer
from tests.support.definitions import daily
from tests.support.installation import PARTITIONS, Installation

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.kafka import BareTopic, at_end
from benchmarks.support.servers import installed, servers
from retrofill_core.contract.deadlines import DeadlineArmed
from retrofill_core.contract.topics import Topic, partition_of

ARMED = (1_000, 1_000_000)
PROBES = 300
PROBE_GAP = 0.02
# The median of the probes falls for about a minute, from 80 to 20 ms, while Java compiles the broker.
WARM_UPS = 6
AT_ONCE = 10_000
RUNS = 10_000
REPEATS = 3
COLUMNS = "id, shard, alert, pipeline, backfill_id, run_id, reference, due_at, state"


class Deadlines:
    """An installation with runs to attach deadlines to."""

    def __init__(self, made: Installation) -> None:
        self.made = made
        made.start("backfill-planner")
        made.apply(daily("p", schedule="@hourly"))
        self.backfill = made.request("p", "2000-01-01", "2001-02-19")
        assert made.outcome(self.backfill).body["type"] == "BackfillPlanned"
        self.runs = [row["id"] for row in made.query("SELECT id FROM run ORDER BY id LIMIT %s", RUNS)]
        self._batch = 0

    def arm(self, moments: Sequence[datetime]) -> list[int]:
        """Insert and commit armed deadlines for these times; returns their ids."""
        self._batch += 1
        sequence = "SELECT nextval(pg_get_serial_sequence('retrofill.deadline', 'id')) FROM generate_series(1, %s)"
        with psycopg.connect(self.made.settings.dsn_of("owner")) as conn:
            conn.execute("SET search_path = retrofill")
            ids = [id for (id,) in conn.execute(sequence, [len(moments)])]
            with conn.cursor().copy(f"COPY deadline ({COLUMNS}) FROM STDIN".encode()) as copy:
                for n, (id, moment) in enumerate(zip(ids, moments, strict=True)):
                    alert = f"bench-{self._batch}-{n // len(self.runs)}"
                    shard, run = partition_of(str(id), PARTITIONS), self.runs[n % len(self.runs)]
                    copy.write_row((id, shard, alert, "p", self.backfill, run, "RUN_QUEUED_AT", moment, "armed"))
        return ids

    def misses(self, moments: Sequence[datetime]) -> list[float]:
        """Arm deadlines; returns the seconds from each moment to reading its miss."""
        subscriber = at_end(self.made.settings, Topic.DEADLINE_MISSED, range(PARTITIONS))
        ids = self.arm(moments)
        self._hint(ids, moments)
        delays = _read(subscriber, len(ids))
        subscriber.close()
        assert sorted(delays) == sorted(ids), "each was told once"
        return list(delays.values())

    def probe(self) -> list[float]:
        """The delays of deadlines that become due one after the other."""
        soon = datetime.now(UTC) + timedelta(seconds=3)
        return self.misses([soon + timedelta(seconds=n * PROBE_GAP) for n in range(PROBES)])

    def _hint(self, ids: Sequence[int], moments: Sequence[datetime]) -> None:
        """Publish one ``DeadlineArmed`` per shard, as a service that arms deadlines does."""
        first: dict[int, tuple[int, datetime]] = {}
        for id, moment in zip(ids, moments, strict=True):
            first.setdefault(partition_of(str(id), PARTITIONS), (id, moment))
        for id, moment in first.values():
            self.made.publish(Topic.DEADLINES, str(id), DeadlineArmed(deadline_id=id, due_at=moment))


def _read(subscriber: Consumer, count: int) -> dict[int, float]:
    delays: dict[int, float] = {}
    while len(delays) < count:
        message = subscriber.poll(120)
        assert message is not None, f"{count - len(delays)} are missing"
        if message.error() is None:
            event = json.loads(message.value() or b"{}")
            delay = datetime.now(UTC) - datetime.fromisoformat(event["due_at"])
            delays[event["deadline_id"]] = delay.total_seconds()
    return delays


def bare(made: Installation) -> list[float]:
    """Seconds from a moment until the message that a bare timer then publishes is read."""
    topic = BareTopic(made)
    delays = []
    for _ in range(PROBES):
        due = time.monotonic() + PROBE_GAP
        time.sleep(PROBE_GAP)  # simulates the bare timer
        topic.round_trip()
        delays.append(time.monotonic() - due)
    return delays


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _measure(made: Installation, armed: int) -> list[Figure]:
    bench = Deadlines(made)
    far = datetime.now(UTC) + timedelta(days=1)
    bench.arm([far + timedelta(milliseconds=n) for n in range(armed)])
    made.start("deadline-watcher")
    bench.misses([datetime.now(UTC) + timedelta(seconds=2)])  # the watcher now owns its shards
    for _ in range(WARM_UPS):
        bench.probe()
    single, peer, at_once = [], [], []
    for _ in range(REPEATS):
        single.append(_p99(bench.probe()))
        peer.append(_p99(bare(made)))
        at_once.append(max(bench.misses([datetime.now(UTC) + timedelta(seconds=8)] * AT_ONCE)))
    return [
        figure(f"p99 of {PROBES}, {armed:,} armed", "ms", [s * 1000 for s in single], at_most=50),
        figure(f"p99 of a bare timer, {armed:,} armed", "ms", [s * 1000 for s in peer]),
        figure(f"10,000 at once, {armed:,} armed", "s", at_once, at_most=2),
    ]


def run() -> Sequence[Figure]:
    """Measure each number of armed deadlines on its own installation."""
    figures: list[Figure] = []
    with servers() as on:
        for armed in ARMED:
            with installed(on) as made:
                figures += _measure(made, armed)
    return figures


BENCHMARK = Benchmark(
    "deadline",
    "a deadline's moment until its DeadlineMissed is read by a read_committed subscriber",
    "a bare timer that publishes a bare Kafka transaction",
    "p99 at most 50 ms; 10,000 due at once in at most 2 s",
    run,
)
