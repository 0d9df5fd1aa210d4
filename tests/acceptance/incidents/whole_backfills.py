"""A request for a backfill, the subscribers that await its reply, and a sampler that sees whether
it is whole.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import TopicPartition
from psycopg.rows import dict_row
from tests.support.definitions import alert, daily
from tests.support.events import Event
from tests.support.installation import Installation, until
from tests.support.servers import Servers

from retrofill_core.bus.clients import reader
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.store import pipelines
from retrofill_core.store.engine import make_engine

RANGE = {"pipeline": "p", "from": "2020-01-01", "to": "2020-01-08"}
RUNS = 8
# One snapshot of every backfill with a row or an outcome, with the counts of its parts.
BACKFILLS = """
WITH known AS (
  SELECT id FROM backfill UNION SELECT id FROM backfill_request WHERE answer_type = 'BackfillPlanned'
)
SELECT k.id, b.state, b.runs AS announced,
  (SELECT count(*) FROM run r WHERE r.backfill_id = k.id) AS runs,
  (SELECT count(*) FROM backfill_interval i WHERE i.backfill_id = k.id) AS intervals,
  (SELECT count(*) FROM deadline d WHERE d.backfill_id = k.id) AS deadlines,
  (SELECT count(*) FROM backfill_request q WHERE q.id = k.id AND q.answer_type = 'BackfillPlanned') AS outcomes,
  (SELECT count(*) FROM run r WHERE r.backfill_id = k.id AND r.finished_at IS NULL) AS unfinished
FROM known k LEFT JOIN backfill b ON b.id = k.id
"""
WHOLE = {"announced": RUNS, "runs": RUNS, "intervals": RUNS, "deadlines": RUNS, "outcomes": 1}


@dataclass
class Sampler:
    """Polls Postgres from a thread, as any reader might at any moment."""

    installation: Installation
    states: set[str] = field(default_factory=set)
    broken: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Sample for the duration of the block."""
        ended = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            looked = thread.submit(self._look_until, ended)
            try:
                yield
            finally:
                ended.set()
        looked.result()

    def _look_until(self, ended: threading.Event) -> None:
        """Record the states seen and each backfill that was incomplete or ended too early."""
        dsn = self.installation.settings.dsn_of("owner")
        with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
            conn.execute("SET search_path = retrofill")
            while not ended.wait(0.02):
                for row in conn.execute(BACKFILLS):
                    self.states.add(str(row["state"]))
                    if not is_whole(row) or (row["state"] == "succeeded" and row["unfinished"]):
                        self.broken.append(row)


def is_whole(row: dict[str, Any]) -> bool:
    """Whether a backfill has every row that it announces, and one outcome."""
    rows = {row["announced"], row["runs"], row["intervals"], row["deadlines"]}
    return len(rows) == 1 and row["outcomes"] == 1


def installation_with_a_pipeline(servers: Servers) -> Installation:
    """Store the pipeline without a planner, so the request is the first message that a planner
    handles.
    """
    installation = servers.installation()
    engine = make_engine(installation.settings.dsn_of("owner"), "test")
    with engine.begin() as conn:
        pipelines.put(conn, daily(max_active_runs=4, deadlines=[alert("late", "RUN_QUEUED_AT", 3600)]))
    engine.dispose()
    return installation


def ask(installation: Installation, id: str, **more: Any) -> str:
    """Publish a request for the range. Returns its ``ce_id``."""
    body = BackfillRequested.model_validate(RANGE | more)
    ce_id = installation.publish(Topic.BACKFILL_REQUESTS, id, body)
    assert ce_id is not None
    return ce_id


class Subscriber:
    """Reads ``backfill-events`` with read_committed, from the beginning."""

    def __init__(self, installation: Installation) -> None:
        self._seen: list[dict[str, Any]] = []
        settings = installation.settings
        self._consumer = reader(settings, "subscriber")
        topic = f"{settings.topic_prefix}{Topic.BACKFILL_EVENTS}"
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(settings.partitions)])

    def answer(self, ce_id: str) -> dict[str, Any]:
        """Wait for the reply to a request."""
        until(lambda: bool(self._read_to(ce_id)), f"an answer to {ce_id}")
        return self._read_to(ce_id)[0]

    def close(self) -> None:
        self._consumer.close()

    def _read_to(self, ce_id: str) -> list[dict[str, Any]]:
        # A message with an error is an end of partition.
        self._seen += [json.loads(m.value() or b"") for m in self._consumer.consume(100, 0.1) if m.error() is None]
        return [body for body in self._seen if body.get("in_reply_to") == ce_id]


def answers(installation: Installation, isolation: str = "read_committed") -> dict[str, list[Event]]:
    """The events that subscribers see, by the ``ce_id`` they reply to, or else by type."""
    found: dict[str, list[Event]] = defaultdict(list)
    for event in installation.events(Topic.BACKFILL_EVENTS, isolation=isolation):
        found[event.body.get("in_reply_to") or event.body["type"]].append(event)
    return found
