"""Time from a request to its ``BackfillPlanned``.

Compared with a bare insert of the same rows and a bare Kafka transaction.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg
from confluent_kafka import Producer
from tests.support.definitions import daily
from tests.support.installation import Installation

from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.support.kafka import BareTopic, ask, at_end
from benchmarks.support.servers import installed, servers
from retrofill_core.bus.clients import producer
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import Topic

SIZES = (1, 1096, 10_000, 100_000)
REPEATS = 3
# The reply, the backfill's state and the relay's cursor are on separate topics.
PARTITIONS = 3
FIRST = datetime(2000, 1, 1, tzinfo=UTC)


def planned(made: Installation, sender: Producer, size: int) -> tuple[str, float]:
    """Request ``size`` runs; returns the pipeline and the seconds until the reply is read."""
    pipeline, id = f"hourly-{uuid.uuid4().hex[:8]}", f"bench-{uuid.uuid4().hex[:8]}"
    made.apply(daily(pipeline, schedule="@hourly"))
    subscriber = at_end(made.settings, Topic.BACKFILL_EVENTS, range(made.settings.partitions))
    body = BackfillRequested.model_validate(
        {"pipeline": pipeline, "from": FIRST.isoformat(), "to": (FIRST + timedelta(hours=size - 1)).isoformat()}
    )
    # First read the end of each partition. Fetching has started after that.
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


def inserted(made: Installation, pipeline: str) -> float:
    """Seconds to insert the same rows into indexed copies of the tables in one transaction."""
    columns = "backfill_id, pipeline_no, interval_start, interval_end, position, state"
    source = "(SELECT * FROM run WHERE pipeline_no = (SELECT no FROM pipeline WHERE name = %s)) AS r"
    with psycopg.connect(made.settings.dsn_of("owner")) as conn:
        conn.execute("SET search_path = retrofill")
        for table in ("run", "backfill_interval"):
            conn.execute(f"DROP TABLE IF EXISTS bench_{table}".encode())
            conn.execute(f"CREATE TABLE bench_{table} (LIKE {table} INCLUDING ALL)".encode())
        conn.commit()
        began = time.monotonic()
        conn.execute(f"INSERT INTO bench_run ({columns}) SELECT {columns} FROM {source}".encode(), [pipeline])
        conn.execute(
            "INSERT INTO bench_backfill_interval (backfill_id, interval_start, interval_end, run_id) "
            f"SELECT backfill_id, interval_start, interval_end, id FROM {source}".encode(),
            [pipeline],
        )
        conn.commit()
        return time.monotonic() - began


def run() -> Sequence[Figure]:
    """Measure each size several times, each time next to its peers."""
    figures: list[Figure] = []
    per_run: dict[int, list[float]] = {}
    with servers() as on, installed(on) as made:
        made.start("backfill-planner")
        sender = producer(made.settings, "bench")
        bare = BareTopic(made, PARTITIONS)
        planned(made, sender, 2)  # warm up the connections, as those of a frequent publisher are
        for size in SIZES:
            ours, peers = [], []
            for _ in range(REPEATS):
                pipeline, seconds = planned(made, sender, size)
                ours.append(seconds)
                peers.append(inserted(made, pipeline) + bare.round_trip())
            per_run[size] = [seconds / size for seconds in ours]
            limit = 150.0 if size == 1096 else None
            figures.append(figure(f"{size:,} runs", "ms", [s * 1000 for s in ours], at_most=limit))
            figures.append(figure(f"{size:,} runs beside the insert and Kafka", "x", ratios(ours, peers), at_most=2.0))
    growth = ratios(per_run[100_000], per_run[10_000])
    return [*figures, figure("one run of 100,000 beside one of 10,000", "x", growth, at_most=1.2)]


BENCHMARK = Benchmark(
    "accept",
    "a request is published until its BackfillPlanned is read by a read_committed subscriber",
    "an insert of the same rows by the server itself into copies of the tables with all indexes, and a bare Kafka "
    f"transaction over {PARTITIONS} partitions, read back",
    "at most 2 x the two together; 1,096 runs in at most 150 ms; linear growth",
    run,
)
