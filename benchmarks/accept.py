"""From a request to its ``BackfillPlanned``, beside a bare ``COPY`` of as many rows and a bare Kafka transaction."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg
from confluent_kafka import Producer
from tests.support.installation import Installation, daily

from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.support.kafka import BareTopic, ask, at_end
from benchmarks.support.servers import installed, servers
from retrofill.bus.clients import producer
from retrofill.bus.topics import Topic
from retrofill.messages.backfills import BackfillRequested

SIZES = (1, 1096, 10_000, 100_000)
REPEATS = 3
FIRST = datetime(2000, 1, 1, tzinfo=UTC)


def planned(made: Installation, sender: Producer, size: int) -> tuple[str, float]:
    """The pipeline of a new request for ``size`` runs, and the seconds from publishing it to reading the answer."""
    pipeline, id = f"hourly-{uuid.uuid4().hex[:8]}", f"bench-{uuid.uuid4().hex[:8]}"
    made.apply(daily(pipeline, schedule="@hourly"))
    subscriber = at_end(made.settings, Topic.BACKFILL_EVENTS, range(made.settings.partitions))
    body = BackfillRequested.model_validate(
        {"pipeline": pipeline, "from": FIRST.isoformat(), "to": (FIRST + timedelta(hours=size - 1)).isoformat()}
    )
    # The first answer is the end of each partition: from then on it is fetched from.
    for _ in range(made.settings.partitions):
        subscriber.poll(5)
    began = time.monotonic()
    ask(made.settings, sender, id, body)
    while True:
        message = subscriber.poll(300)
        assert message is not None, "there was no answer"
        if message.error() is None and message.key() == id.encode():
            seconds = time.monotonic() - began
            answer = json.loads(message.value() or b"{}")
            assert (answer["type"], answer.get("runs")) == ("BackfillPlanned", size), answer
            subscriber.close()
            return pipeline, seconds


def copied(made: Installation, pipeline: str) -> float:
    """Seconds to ``COPY`` the same rows in one transaction into copies of the tables with all their indexes."""
    columns = "backfill_id, pipeline_no, interval_start, interval_end, position, state"
    of_pipeline = "pipeline_no = (SELECT no FROM pipeline WHERE name = %s)"
    with psycopg.connect(made.settings.dsn_of("owner")) as conn:
        conn.execute("SET search_path = retrofill")
        for table in ("run", "backfill_interval"):
            conn.execute(f"DROP TABLE IF EXISTS bench_{table}".encode())
            conn.execute(f"CREATE TABLE bench_{table} (LIKE {table} INCLUDING ALL)".encode())
        rows = conn.execute(f"SELECT {columns} FROM run WHERE {of_pipeline}".encode(), [pipeline]).fetchall()
        conn.commit()
        began = time.monotonic()
        with conn.cursor().copy(f"COPY bench_run ({columns}) FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row)
        into = b"COPY bench_backfill_interval (backfill_id, interval_start, interval_end, run_id) FROM STDIN"
        with conn.cursor().copy(into) as copy:
            for n, row in enumerate(rows):
                copy.write_row((row[0], row[2], row[3], n))
        conn.commit()
        return time.monotonic() - began


def run() -> Sequence[Figure]:
    """Each size several times, each beside its peers."""
    figures: list[Figure] = []
    per_run: dict[int, list[float]] = {}
    with servers() as on, installed(on) as made:
        made.start("backfill-planner")
        sender = producer(made.settings, "bench")
        bare = BareTopic(made)
        planned(made, sender, 2)  # connected and warm, as whoever publishes often is
        for size in SIZES:
            ours, peers = [], []
            for _ in range(REPEATS):
                pipeline, seconds = planned(made, sender, size)
                ours.append(seconds)
                peers.append(copied(made, pipeline) + bare.round_trip())
            per_run[size] = [seconds / size for seconds in ours]
            limit = 150.0 if size == 1096 else None
            figures.append(figure(f"{size:,} runs", "ms", [s * 1000 for s in ours], at_most=limit))
            figures.append(figure(f"{size:,} runs beside COPY and Kafka", "x", ratios(ours, peers), at_most=2.0))
    growth = ratios(per_run[100_000], per_run[10_000])
    return [*figures, figure("one run of 100,000 beside one of 10,000", "x", growth, at_most=1.2)]


BENCHMARK = Benchmark(
    "accept",
    "a request is published until its BackfillPlanned is read by a read_committed subscriber",
    "a bare COPY of the same rows into copies of the tables with all indexes, and a bare Kafka transaction read back",
    "at most 2 x the two together; 1,096 runs in at most 150 ms; linear growth",
    run,
)
