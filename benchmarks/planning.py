"""How long a request takes until its ``BackfillPlanned`` is read by a ``read_committed`` subscriber, beside a bare ``COPY``.

``make bench``: on an embedded Kafka and Postgres of its own, for 1, 1,096, 10,000 and 100,000 runs. The ``COPY`` puts as many
rows into copies of the same tables, with the same indexes, in the same database.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.installation import Installation, Servers, daily

from retrofill.bus.clients import producer, reader
from retrofill.bus.envelope import headers_of, wire_headers
from retrofill.bus.partitioning import partition_of
from retrofill.bus.topics import Topic
from retrofill.messages.backfills import BackfillRequested

SIZES = (1, 1096, 10_000, 100_000)
FIRST = datetime(2000, 1, 1, tzinfo=UTC)


def planned(installation: Installation, sender: Producer, size: int) -> float:
    """Seconds from publishing to reading the answer."""
    installation.apply(daily(f"hourly{size}", schedule="@hourly"))
    id = f"bench-{uuid.uuid4().hex[:8]}"
    topic = f"{installation.settings.topic_prefix}{Topic.BACKFILL_EVENTS}"
    partition = partition_of(id, installation.settings.partitions)
    subscriber: Consumer = reader(installation.settings, "bench", **{"fetch.wait.max.ms": 10})
    _, end = subscriber.get_watermark_offsets(TopicPartition(topic, partition))
    subscriber.assign([TopicPartition(topic, partition, end)])
    while (message := subscriber.poll(1)) is None or not message.error():
        continue
    body = BackfillRequested.model_validate(
        {"pipeline": f"hourly{size}", "from": FIRST.isoformat(), "to": (FIRST + timedelta(hours=size - 1)).isoformat()}
    )
    began = time.monotonic()
    sender.produce(
        f"{installation.settings.topic_prefix}{Topic.BACKFILL_REQUESTS}",
        key=id,
        value=body.encode(),
        headers=wire_headers(headers_of(body, "bench")),
    )
    sender.flush()
    while True:
        message = subscriber.poll(120)
        assert message is not None
        if not message.error() and (message.key() or b"").decode() == id:
            seconds = time.monotonic() - began
            answer = json.loads(message.value() or b"{}")
            assert answer["type"] == "BackfillPlanned", answer
            assert answer["runs"] == size, answer["runs"]
            subscriber.close()
            return seconds


def copied(installation: Installation, size: int) -> float:
    """Seconds to ``COPY`` the same rows in one transaction."""
    with psycopg.connect(installation.settings.dsn_of("owner")) as conn:
        conn.execute("SET search_path = retrofill")
        for table in ("run", "backfill_interval"):
            conn.execute(f"CREATE TABLE IF NOT EXISTS bench_{table} (LIKE {table} INCLUDING ALL)")
            conn.execute(f"TRUNCATE bench_{table}")
        columns = "backfill_id, pipeline_no, interval_start, interval_end, position, state"
        rows = conn.execute(
            f"SELECT {columns} FROM run WHERE pipeline_no = (SELECT no FROM pipeline WHERE name = %s)",
            [f"hourly{size}"],
        ).fetchall()
        conn.commit()
        began = time.monotonic()
        with conn.cursor().copy(f"COPY bench_run ({columns}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        with conn.cursor().copy(
            "COPY bench_backfill_interval (backfill_id, interval_start, interval_end, run_id) FROM STDIN"
        ) as copy:
            for n, row in enumerate(rows):
                copy.write_row((row[0], row[2], row[3], n))
        conn.commit()
        return time.monotonic() - began


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="retrofill-bench-") as home:
        servers = Servers(Path(home))
        try:
            servers.start()
            installation = servers.installation()
            installation.start("backfill-planner")
            # Connected once, as whoever publishes often is: the first request is not measured.
            sender = producer(installation.settings, "bench")
            planned(installation, sender, 2)
            for size in SIZES:
                ours, bare = planned(installation, sender, size), copied(installation, size)
                line = f"planned in {ours * 1000:8.1f} ms, bare COPY {bare * 1000:8.1f} ms, ratio {ours / bare:5.2f}"
                print(f"{size:>7,} runs: {line}")  # noqa: T201 - the result
            installation.close()
        finally:
            servers.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
