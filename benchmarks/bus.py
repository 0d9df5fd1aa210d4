"""Throughput and latency of an outbox and its relay, compared with bare Kafka producers."""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Sequence

import psycopg
from confluent_kafka import Consumer
from tests.support.installation import Installation

from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.support.kafka import BareTopic, at_end, read
from benchmarks.support.servers import installed, servers
from retrofill_core.bus.notifications import Announcer
from retrofill_core.contract.topics import WATCHER, Topic
from retrofill_core.store.engine import make_engine
from retrofill_core.store.outbox import Outgoing, channel, insert_rows
from retrofill_core.store.tables import SERVICE_TABLES

EVENTS = 20_000
BATCH = 1_000
REPEATS = 3
RATES = (10, 1_000, 5_000)
SECONDS_A_RATE = 5.0
TICK = 0.02
WAKE_UP = [(channel(WATCHER.package), "")]
_ADD = "INSERT INTO deadline_watcher_outbox (topic, key, value, headers) SELECT %s, 'k', v, '[]' FROM unnest(%s::bytea[]) v"


def through_the_outbox(made: Installation, subscriber: Consumer, values: Sequence[bytes]) -> float:
    """Seconds until all events are read.

    They are inserted one batch per transaction, as by a service.
    """
    engine = make_engine(made.settings.dsn_of(WATCHER.name), "bench")
    announcer = announcing(made)
    began = time.monotonic()
    for start in range(0, len(values), BATCH):
        rows = [Outgoing(Topic.DEADLINE_MISSED, b"k", value, ()) for value in values[start : start + BATCH]]
        with engine.begin() as conn:
            insert_rows(conn, SERVICE_TABLES[WATCHER.package], rows)
        announcer.announce(WAKE_UP)
    read(subscriber, len(values))
    seconds = time.monotonic() - began
    engine.dispose()
    announcer.stop()
    return seconds


def announcing(made: Installation) -> Announcer:
    """Wakes the relay after each commit, as a service does."""
    announcer = Announcer(made.settings.dsn_of(WATCHER.name), "bench", lambda *_: None)
    announcer.start()
    return announcer


def latencies(made: Installation, subscriber: Consumer, rate: int) -> list[float]:
    """Seconds from inserting to reading each event, at ``rate`` events per second."""
    a_tick = max(1, round(rate * TICK))
    gap = a_tick / rate
    ticks = round(SECONDS_A_RATE / gap)
    found: list[float] = []
    announcer = announcing(made)
    wanted = ticks * a_tick
    with psycopg.connect(made.settings.dsn_of("owner")) as conn:
        conn.execute("SET search_path = retrofill")
        conn.commit()
        began = time.monotonic()
        for n in range(ticks):
            while (left := began + n * gap - time.monotonic()) > 0:
                found += _arrived(subscriber, left)
            stamp = json.dumps({"at": time.monotonic()}).encode()
            conn.execute(_ADD, [str(Topic.DEADLINE_MISSED), [stamp] * a_tick])
            conn.commit()
            announcer.announce(WAKE_UP)
            found += _arrived(subscriber, 0)
        while len(found) < wanted:
            found += _arrived(subscriber, 1)
    announcer.stop()
    return found


def _arrived(subscriber: Consumer, seconds: float) -> list[float]:
    first = subscriber.poll(seconds)
    if first is None:
        return []
    messages = [first, *subscriber.consume(1000, 0)]
    now = time.monotonic()
    return [now - json.loads(m.value() or b"{}")["at"] for m in messages if m.error() is None]


def run() -> Sequence[Figure]:
    """Measure throughput next to two peers, then latency at three rates."""
    figures: list[Figure] = []
    values = [uuid.uuid4().hex.encode() * 10 for _ in range(EVENTS)]
    with servers() as on, installed(on) as made:
        made.start(WATCHER.name)
        bare = BareTopic(made)
        subscriber = at_end(made.settings, Topic.DEADLINE_MISSED, range(made.settings.partitions))
        through_the_outbox(made, subscriber, values[:BATCH])  # warm-up: the relay has taken over
        ours, transactional, idempotent = [], [], []
        for _ in range(REPEATS):
            ours.append(EVENTS / through_the_outbox(made, subscriber, values))
            transactional.append(EVENTS / bare.transactional(values, BATCH))
            idempotent.append(EVENTS / bare.idempotent(values))
        figures += [
            figure("outbox and relay", "events/s", ours),
            figure("bare transactional producer", "events/s", transactional),
            figure("bare idempotent producer", "events/s", idempotent),
            figure("share of the transactional one", "x", ratios(ours, transactional), at_least=0.5),
        ]
        for rate in RATES:
            delays = [d * 1000 for d in latencies(made, subscriber, rate)]
            cuts = statistics.quantiles(delays, n=100)
            figures.append(figure(f"latency at {rate:,} events/s, median", "ms", [cuts[49]]))
            figures.append(figure(f"latency at {rate:,} events/s, p99", "ms", [cuts[98]]))
    return figures


BENCHMARK = Benchmark(
    "bus",
    f"{EVENTS:,} events of 320 bytes, inserted {BATCH:,} a transaction, until all are read read_committed",
    "a bare transactional producer with as large transactions, and a bare idempotent one",
    "at least half of the transactional one",
    run,
)
