"""Time from a request to the first line of user code, and to the first row that it counts, with warm Spark drivers.

Compared with a bare Spark Connect call.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

from confluent_kafka import Consumer, Producer

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.flights import User, user_with_spark
from benchmarks.support.kafka import ask, at_end
from retrofill_core.bus.clients import producer
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import Topic, partition_of
from retrofill_core.settings import Settings

REPEATS = 15
WARM = 4
FIRST_DAY = date(2014, 1, 1)
_FIRST = """
import time
from pathlib import Path

from retrofill import Pipeline

first = Pipeline("first", schedule="@daily", start="2000-01-01")

@first.task
def only(run):
    began = time.time()
    # The session is on the server from its first call on.
    run.spark.range(1).count()
    Path({notes!r}).write_text(f"{{began}} {{time.time()}}")
"""


def started(settings: Settings, sender: Producer, notes: Path, n: int) -> list[float]:
    """Seconds from publishing the n-th day's request to each of the times that its task writes to ``notes``.

    It runs on this machine, so all times are from one clock.
    """
    id = f"bench-{uuid.uuid4().hex[:8]}"
    subscriber = at_end(settings, Topic.RUN_EVENTS, [partition_of(id, settings.partitions)])
    subscriber.poll(5)  # the end of the partition: fetching has started after that
    day = (FIRST_DAY + timedelta(days=n)).isoformat()
    body = BackfillRequested.model_validate({"pipeline": "first", "from": day, "to": day})
    began = time.time()
    ask(settings, sender, id, body)
    # Wait until the driver is free again.
    _wait_for(subscriber, id, "RunSucceeded")
    subscriber.close()
    return [float(moment) - began for moment in notes.read_text().split()]


def _wait_for(subscriber: Consumer, id: str, type: str) -> None:
    while True:
        message = subscriber.poll(60)
        assert message is not None, f"no {type}"
        if message.error() is None and message.key() == id.encode():
            event = json.loads(message.value() or b"{}")
            assert event["type"] != "RunFailed", event
            if event["type"] == type:
                return


def connect_call(remote: str) -> float:
    """Seconds of the smallest possible Spark Connect call, in a session of its own."""
    from pyspark.sql import SparkSession

    began = time.monotonic()
    session = SparkSession.builder.remote(remote).create()
    session.range(1).count()
    seconds = time.monotonic() - began
    session.stop()
    return seconds


def run() -> Sequence[Figure]:
    """Measure requests in sequence, each next to a bare call."""
    with user_with_spark(flights=False) as user:
        notes = user.home / "first-line"
        _apply(user, notes)
        settings = user.settings()
        assert settings.spark_remote is not None
        sender = producer(settings, "bench")
        for n in range(WARM):
            started(settings, sender, notes, n)
            connect_call(settings.spark_remote)
        lines, rows, calls = [], [], []
        for n in range(REPEATS):
            line, row = started(settings, sender, notes, WARM + n)
            lines.append(1000 * line)
            rows.append(1000 * row)
            calls.append(1000 * connect_call(settings.spark_remote))
    above = [a - b for a, b in zip(rows, calls, strict=True)]
    return [
        figure("request to the first user line", "ms", lines),
        figure("request to the first row", "ms", rows),
        figure("a bare Spark Connect call", "ms", calls),
        figure("above the bare call", "ms", above, at_most=250),
    ]


def _apply(user: User, notes: Path) -> None:
    path = user.home / "first.py"
    path.write_text(_FIRST.format(notes=str(notes)))
    user.run("pipelines", "apply", str(path))


BENCHMARK = Benchmark(
    "start",
    "a request for one day is published until its task has counted one row with the run's session, with warm drivers",
    "a new Spark Connect session that counts one row",
    "at most 250 ms above it",
    run,
)
