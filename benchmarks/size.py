"""Bytes per backfill, run and deadline in Postgres and Kafka, as used in ``docs/sizing.md``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import psycopg
from tests.support.definitions import alert, daily
from tests.support.installation import Installation, until

from benchmarks.accept import FIRST
from benchmarks.core import Benchmark, Figure, figure
from benchmarks.orchestrate import orchestrated
from benchmarks.support.kafka import ask
from benchmarks.support.servers import installed, servers
from retrofill_core.bus.clients import producer
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.store.deadlines import count_waiting
from retrofill_core.store.engine import make_engine

PLANNED = 100_000
RAN = 3_000
SMALL = 300
OUTBOX = 20_000
REPEATS = 3
# Topics that the run-starter publishes to for each run.
RELAYED = (Topic.RUN_EVENTS, Topic.INTERVAL_STATES, Topic.DEADLINES)
_EVENTS = """
INSERT INTO run_starter_outbox (topic, key, value, headers)
SELECT 'run-events', convert_to(gen_random_uuid()::text, 'UTF8'), convert_to(repeat('x', 320), 'UTF8'),
       jsonb_build_object('ce_specversion', '1.0', 'ce_id', gen_random_uuid(), 'ce_type', 'RunSucceeded',
                          'ce_source', 'run-starter', 'ce_time', clock_timestamp(), 'content-type', 'application/json')
FROM generate_series(1, %s)
"""


def grown(made: Installation, tables: Sequence[str], work: Callable[[], object]) -> dict[str, int]:
    """How many bytes each table and its indexes grow during ``work``, after a vacuum."""
    before = {table: _bytes(made, table) for table in tables}
    work()
    with psycopg.connect(made.settings.dsn_of("owner"), autocommit=True) as conn:
        conn.execute("VACUUM ANALYZE")
    return {table: _bytes(made, table) - before[table] for table in tables}


def _bytes(made: Installation, table: str) -> int:
    return int(made.value("SELECT pg_total_relation_size(%s::regclass)", f"retrofill.{table}"))


def plan(made: Installation) -> None:
    """Plan one backfill of many runs, each with a deadline far in the future."""
    far = alert("late", "RUN_QUEUED_AT", timedelta(days=30).total_seconds())
    made.apply(daily("planned", schedule="@hourly", deadlines=[far]))
    last = FIRST + timedelta(hours=PLANNED - 1)
    made.outcome(made.request("planned", FIRST.isoformat(), last.isoformat()))


def plan_small(made: Installation) -> None:
    """Plan many non-overlapping backfills of one run each, all of one pipeline."""
    made.apply(daily("small", schedule="@hourly"))
    sender = producer(made.settings, "bench")
    for n in range(SMALL):
        at = (FIRST + timedelta(hours=n)).isoformat()
        body = BackfillRequested.model_validate({"pipeline": "small", "from": at, "to": at})
        ask(made.settings, sender, f"small-{n:036}", body)
    until(lambda: made.value("SELECT count(*) FROM backfill WHERE pipeline = 'small'") == SMALL, "all are planned")


def insert_events(made: Installation) -> None:
    """Insert events that stay in the outbox, because their service is not running."""
    with made.session() as conn:
        conn.execute(_EVENTS.encode(), [OUTBOX])
        conn.commit()


def counted(made: Installation) -> float:
    """Seconds that a watcher takes to count all armed deadlines for its gauge."""
    engine = make_engine(made.settings.dsn_of("owner"), "bench")
    try:
        with engine.connect() as conn:
            began = time.monotonic()
            assert count_waiting(conn)["armed"] == PLANNED
            return time.monotonic() - began
    finally:
        engine.dispose()


def kafka_bytes(home: Path, prefix: str) -> int:
    """Bytes of all messages in an installation's topics, for one replica."""
    return sum(path.stat().st_size for path in home.rglob(f"{prefix}*/*.log"))


def run() -> Sequence[Figure]:
    """Measure planned runs, finished runs and waiting events."""
    with servers() as on:
        with installed(on) as made:
            made.start("backfill-planner")
            small = grown(made, ("backfill", "backfill_request"), lambda: plan_small(made))
            big = grown(made, ("run", "backfill_interval", "deadline"), lambda: plan(made))
            seconds = [counted(made) for _ in range(REPEATS)]
            outbox = grown(made, ("run_starter_outbox",), lambda: insert_events(made))
        with installed(on) as made:
            made.start("backfill-planner")
            before = kafka_bytes(on.home, made.settings.topic_prefix)
            ran = grown(made, ("attempt", "run", "task_run"), lambda: orchestrated(made, RAN, 1, "ran"))
            published = kafka_bytes(on.home, made.settings.topic_prefix) - before
            relayed = sum(len(made.events(topic)) for topic in RELAYED)
    return [
        *(figure(f"{table} row", "bytes", [size / SMALL]) for table, size in small.items()),
        *(figure(f"{table} row, planned", "bytes", [size / PLANNED]) for table, size in big.items()),
        *(figure(f"{table} row, ended", "bytes", [size / RAN]) for table, size in ran.items()),
        figure("outbox row", "bytes", [outbox["run_starter_outbox"] / OUTBOX]),
        figure("Kafka, all messages of a run", "bytes", [published / RAN]),
        figure("messages of a run through the run-starter's relay", "", [relayed / RAN]),
        figure("counting 100,000 armed deadlines for a gauge", "ms", [s * 1000 for s in seconds]),
    ]


BENCHMARK = Benchmark(
    "size",
    "bytes of a row with its part of all indexes (100,000 runs planned, 3,000 ended, each of one task), and of its messages",
    "nothing",
    "none: docs/sizing.md is made from it",
    run,
)
