"""How late a missed deadline is known, with a thousand and with a million armed ones, and how long ten thousand at once take.

``make bench ONLY=deadlines``: on an embedded Kafka and Postgres of its own, one watcher. Delays are from a deadline's moment
to the watcher's decision (the database's clock for both) and to when a ``read_committed`` subscriber has read the event.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import psycopg
from confluent_kafka import Consumer, TopicPartition
from tests.support.installation import PARTITIONS, Installation, Replica, Servers, daily

from retrofill.bus.clients import reader
from retrofill.bus.partitioning import partition_of
from retrofill.bus.topics import Topic
from retrofill.messages.deadlines import DeadlineArmed

ARMED = (1_000, 1_000_000)
PROBES = 300
PROBE_GAP = 0.02
AT_ONCE = 10_000
RUNS = 10_000
COLUMNS = "id, shard, alert, pipeline, backfill_id, run_id, reference, due_at, state"


@dataclass(frozen=True)
class Miss:
    """One miss: seconds from its moment to the decision, and to the reading."""

    id: int
    detected: float
    read: float


class Bench:
    """One installation with runs to hang deadlines on, and a subscriber at the end of the topic."""

    def __init__(self, made: Installation) -> None:
        self.made = made
        made.start("backfill-planner")
        made.apply(daily("p", schedule="@hourly"))
        self.backfill = made.request("p", "2000-01-01", "2001-02-19")
        assert made.outcome(self.backfill).body["type"] == "BackfillPlanned"
        self.runs = [row["id"] for row in made.query("SELECT id FROM run ORDER BY id LIMIT %s", RUNS)]
        self._batch = 0

    def arm(self, moments: Sequence[datetime]) -> list[int]:
        """Armed deadlines at these moments, committed; their ids."""
        self._batch += 1
        with psycopg.connect(self.made.settings.dsn_of("owner")) as conn:
            conn.execute("SET search_path = retrofill")
            ids = [
                id
                for (id,) in conn.execute(
                    "SELECT nextval(pg_get_serial_sequence('retrofill.deadline', 'id')) FROM generate_series(1, %s)",
                    [len(moments)],
                )
            ]
            with conn.cursor().copy(f"COPY deadline ({COLUMNS}) FROM STDIN") as copy:
                for n, (id, moment) in enumerate(zip(ids, moments, strict=True)):
                    alert = f"bench-{self._batch}-{n // len(self.runs)}"
                    shard, run = partition_of(str(id), PARTITIONS), self.runs[n % len(self.runs)]
                    row = (id, shard, alert, "p", self.backfill, run, "RUN_QUEUED_AT", moment, "armed")
                    copy.write_row(row)
        return ids

    def hint(self, ids: Sequence[int], moments: Sequence[datetime]) -> None:
        """Tell the watcher of them, one a shard, as whoever arms deadlines does."""
        first: dict[int, tuple[int, datetime]] = {}
        for id, moment in zip(ids, moments, strict=True):
            first.setdefault(partition_of(str(id), PARTITIONS), (id, moment))
        for id, moment in first.values():
            self.made.publish(Topic.DEADLINES, str(id), DeadlineArmed(deadline_id=id, due_at=moment))

    def subscriber(self) -> Consumer:
        """One that stands at the end of the topic."""
        topic = f"{self.made.settings.topic_prefix}{Topic.DEADLINE_MISSED}"
        consumer = reader(self.made.settings, "bench", **{"fetch.wait.max.ms": 5})
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, p))[1] for p in range(PARTITIONS)]
        consumer.assign([TopicPartition(topic, p, end) for p, end in enumerate(ends)])
        return consumer

    def misses(self, moments: Sequence[datetime]) -> list[Miss]:
        """Arm deadlines at ``moments``, and read all of their misses."""
        consumer = self.subscriber()
        ids = self.arm(moments)
        self.hint(ids, moments)
        found = {miss.id: miss for miss in _read(consumer, len(ids))}
        consumer.close()
        assert sorted(found) == sorted(ids), "each was told once"
        return list(found.values())


def _read(consumer: Consumer, count: int) -> Iterator[Miss]:
    while count:
        message = consumer.poll(60)
        assert message is not None, f"{count} are missing"
        if message.error():
            continue
        now = datetime.now(UTC)
        event = json.loads(message.value() or b"{}")
        due_at = datetime.fromisoformat(event["due_at"])
        detected = datetime.fromisoformat(event["detected_at"])
        count -= 1
        yield Miss(event["deadline_id"], (detected - due_at).total_seconds(), (now - due_at).total_seconds())


def quantiles(values: Sequence[float]) -> str:
    """Median and 99th percentile in milliseconds."""
    cuts = statistics.quantiles(values, n=100)
    return f"median {statistics.median(values) * 1000:6.1f} ms, p99 {cuts[98] * 1000:6.1f} ms"


def megabytes(replica: Replica) -> float:
    """Resident memory."""
    return psutil.Process(replica.process.pid).memory_info().rss / 1e6


def measure(bench: Bench, armed: int) -> None:
    """One size."""
    far = datetime.now(UTC) + timedelta(days=1)
    bench.arm([far + timedelta(milliseconds=n) for n in range(armed)])
    began = time.monotonic()
    watcher = bench.made.start("deadline-watcher")
    started = time.monotonic() - began
    bench.misses([datetime.now(UTC) + timedelta(seconds=2)])  # owns its shards from here on
    soon = datetime.now(UTC) + timedelta(seconds=3)
    single = bench.misses([soon + timedelta(seconds=n * PROBE_GAP) for n in range(PROBES)])
    memory = megabytes(watcher)
    at_once = bench.misses([datetime.now(UTC) + timedelta(seconds=8)] * AT_ONCE)
    say(f"{armed:>9,} armed: started in {started:.1f} s, {memory:.0f} MB")
    say(f"          {PROBES} one by one, decided: {quantiles([m.detected for m in single])}")
    say(f"          {PROBES} one by one, read:    {quantiles([m.read for m in single])}")
    say(f"          {AT_ONCE:,} at once: the last one read {max(m.read for m in at_once):.2f} s after the moment")
    say(f"          memory after that: {megabytes(watcher):.0f} MB")
    watcher.stop()


def say(line: str) -> None:
    """A line of the result."""
    print(line, flush=True)  # noqa: T201 - the result


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="retrofill-bench-") as home:
        servers = Servers(Path(home))
        try:
            servers.start()
            for armed in ARMED:
                made = servers.installation()
                try:
                    measure(Bench(made), armed)
                finally:
                    made.close()
        finally:
            servers.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
