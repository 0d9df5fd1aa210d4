"""The workload: seeded pipelines, requests and commands, and the thread that publishes them."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException, Producer

from retrofill_core.bus.clients import producer
from retrofill_core.bus.envelope import headers_of, wire_headers
from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillPauseRequested,
    BackfillRequested,
    BackfillResumeRequested,
    RunCancelRequested,
    RunRetryRequested,
)
from retrofill_core.contract.base import Message
from retrofill_core.contract.runs import AttemptEnded, ErrorInfo, Report, RunReported
from retrofill_core.contract.topics import Topic, partition_of
from tests.chaos.history import Wish
from tests.chaos.promises.attempts import FORGED
from tests.chaos.spoiling import Spoiler
from tests.support.installation import PARTITIONS, Installation

# No new request is published while this many are open.
OPEN = 8
# Shares of requests at the edge of the calendar, for dates requested before, and for an unknown
# pipeline.
EDGES, AGAIN, UNKNOWN = 0.08, 0.2, 0.03
# Probability of a poison message with each step of the script.
SPOILED = 0.6
PAUSED = "SELECT id FROM backfill WHERE state = 'paused'"
DONE = """
SELECT (SELECT count(*) FROM backfill WHERE ended_at IS NOT NULL AND id ~ '^s[0-9]')
     + (SELECT count(*) FROM backfill_request WHERE answer_type = 'BackfillRejected' AND id ~ '^s[0-9]')
"""
RESUME_SECONDS = 2.0
# Unfinished runs with attempts nearby that are over or have other runs.
FOREIGN = """
SELECT r.id, r.backfill_id, r.attempt, a.id AS attempt_id, a.ended_at IS NOT NULL AS over
FROM run AS r
JOIN attempt AS a ON a.backfill_id = r.backfill_id AND a.position BETWEEN r.position - 3 AND r.position + 3
WHERE r.finished_at IS NULL AND r.attempt_id IS NOT NULL
  AND (a.ended_at IS NOT NULL OR r.position NOT BETWEEN a.position AND a.position + a.runs - 1)
"""


@dataclass(frozen=True)
class Order:
    """A user's command for one backfill."""

    backfill: str
    message: Message


Step = Wish | Order


@dataclass
class Script:
    """A seed's requests in order. Endless, so that it lasts as long as the faults."""

    seed: int
    pipelines: int = 3
    cancelled: set[str] = field(default_factory=set)
    wishes: dict[str, Wish] = field(default_factory=dict)
    today: date = field(default_factory=lambda: datetime.now(UTC).date())

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._next = dict.fromkeys(range(self.pipelines), date(2001, 1, 1))

    def limit(self, number: int) -> int:
        """A pipeline's limit: 2, 3 or 4."""
        return 2 + number % 3

    def batch(self, number: int) -> int:
        """Most runs of one attempt of a pipeline: 1, 2 or 4."""
        return (1, 2, 4)[number % 3]

    def mode(self, number: int) -> str:
        """How a pipeline's batches are executed: every third one's as ranges."""
        return "range" if number % 3 == 2 else "each"

    def steps(self) -> Iterator[Step]:
        """Requests, mixed with later commands for them."""
        later: list[Order] = []
        while True:
            wish = self._wish()
            self.wishes[wish.id] = wish
            yield wish
            later += self._orders(wish)
            if later and self._random.random() < 0.7:
                order = later.pop(0)
                if isinstance(order.message, BackfillCancelRequested):
                    self.cancelled.add(order.backfill)
                yield order

    def _wish(self) -> Wish:
        chance = self._random
        number = chance.randrange(self.pipelines)
        days = chance.randint(1, 6)
        kind = chance.random()
        first = self._next[number]
        if kind < EDGES:
            # Around the pipeline's first date or today: some or all intervals are skipped.
            first = chance.choice([date(2000, 1, 1), self.today]) - timedelta(days=chance.randint(0, days))
        elif kind < EDGES + AGAIN:
            # Overlaps an earlier range: refused, or reduced to what is left.
            first = max(date(2001, 1, 1), first - timedelta(days=chance.randint(1, 6)))
        last = first + timedelta(days=days - 1)
        if kind >= EDGES:
            self._next[number] = max(self._next[number], last + timedelta(days=1))
        asked = [(first + timedelta(days=n)).isoformat() for n in range(days)]
        return Wish(
            id=f"s{self.seed}-{len(self.wishes)}",
            pipeline=f"p{number}" if chance.random() >= UNKNOWN else "nobody",
            first=first,
            last=last,
            limit=chance.randint(1, 3),
            failing=frozenset(day for day in asked if chance.random() < 0.1),
            on_run_failure=chance.choice(["continue", "pause", "cancel"]),
            seconds=round(chance.uniform(0.01, 0.3), 2),
            backwards=chance.random() < 0.3,
            reprocess=chance.choice(["none", "failed", "completed"]),
        )

    def _orders(self, wish: Wish) -> list[Order]:
        fate = self._random.random()
        if fate < 0.15:
            return [Order(wish.id, BackfillPauseRequested()), Order(wish.id, BackfillResumeRequested())]
        if fate < 0.35:
            return [Order(wish.id, RunCancelRequested(intervals=(self._random.choice(wish.starts).date(),)))]
        if wish.failing and fate > 0.5:
            return [Order(wish.id, RunRetryRequested(all_failed=True))] * self._random.choice([1, 2])
        return [Order(wish.id, BackfillCancelRequested())] if fate < 0.45 else []


class Player(threading.Thread):
    """Publishes a script until stopped.

    Each message is sent one to three times, and the next one follows when few requests are open.
    """

    def __init__(self, made: Installation, script: Script, folder: Path, least: int) -> None:
        super().__init__(name="player", daemon=True)
        self._made = made
        self._script = script
        self._folder = folder
        self._least = least
        self._chance = random.Random(script.seed + 1)
        self._producer: Producer = producer(made.settings, "player")
        self._stopping = threading.Event()
        self._forged: set[tuple[int, int]] = set()
        self.spoiler = Spoiler(random.Random(script.seed + 2), f"s{script.seed}")
        self.error: BaseException | None = None

    def run(self) -> None:
        """Publish at least ``least`` requests, then keep the services busy until stopped."""
        try:
            for step in self._script.steps():
                self._publish(step)
                self._spoil()
                resume_at = time.monotonic() + RESUME_SECONDS
                while not self._stopping.is_set() and self._busy():
                    self._stopping.wait(0.1)
                    self._forge()
                    if time.monotonic() >= resume_at:
                        resume_at = time.monotonic() + RESUME_SECONDS
                        self.resume_paused()
                if self._stopping.is_set() and len(self._script.wishes) >= self._least:
                    return
        except BaseException as e:
            self.error = e
            raise

    def stop(self) -> None:
        """Stop publishing. Raises if the thread failed or does not end."""
        self._stopping.set()
        self.join(120)
        if self.error is not None or self.is_alive():
            raise AssertionError(f"the player did not end: {self.error!r}")

    def resume_paused(self) -> None:
        """Resume all paused backfills."""
        try:
            paused = self._made.query(PAUSED)
        except psycopg.Error:
            return  # the server is down: try again next time
        for row in paused:
            self.send(Topic.BACKFILL_REQUESTS, row["id"], BackfillResumeRequested(), 1)

    def send(self, topic: Topic, key: str, message: Message, copies: int) -> None:
        """Publish ``copies`` with one ``ce_id``; waits out any outage of the broker."""
        self.send_all(topic, [(key, message)] * copies)

    def send_all(self, topic: Topic, messages: Sequence[tuple[str, Message]]) -> None:
        """Publish many messages at once; repeats of the same message share a ``ce_id``."""
        headers = {id(message): wire_headers(headers_of(message, "chaos")) for _, message in messages}
        for key, message in messages:
            self._produce(f"{self._made.settings.topic_prefix}{topic}", key, message.encode(), headers[id(message)])
        self._flush()

    def _flush(self) -> None:
        """Flush until the broker has everything, even after an outage."""
        while self._producer.flush(5) > 0 and not self._stopping.is_set():
            continue
        assert self._producer.flush(60) == 0, "the broker is away"

    def _produce(self, topic: str, key: str, value: bytes, headers: list[tuple[str, str | bytes | None]]) -> None:
        while True:
            try:
                self._producer.produce(topic, key=key, value=value, headers=headers)
                return
            except KafkaException as e:
                # A starting broker reports every topic as unknown, and the client caches that until
                # it asks again.
                if e.args[0].code() != KafkaError._UNKNOWN_TOPIC:
                    raise
                with suppress(KafkaException):
                    self._producer.list_topics(topic, timeout=5)

    def _publish(self, step: Step) -> None:
        copies = self._chance.choice([1, 1, 2, 3])
        if isinstance(step, Order):
            self.send(Topic.BACKFILL_REQUESTS, step.backfill, step.message, copies)
        else:
            self.send(Topic.BACKFILL_REQUESTS, step.id, request_of(step, self._folder), copies)

    def _spoil(self) -> None:
        """Sometimes publish a poison message."""
        if self._chance.random() < SPOILED:
            topic, key, value, headers = self.spoiler.draw()
            self._produce(f"{self._made.settings.topic_prefix}{topic}", key, value, headers)
            self._flush()
            self.spoiler.sent.add(key)

    def _busy(self) -> bool:
        try:
            return len(self._script.wishes) - int(self._made.value(DONE)) >= OPEN
        except psycopg.Error:
            return True  # the server is down

    def _forge(self) -> None:
        """Report failures in attempts that a run is not part of, or no longer, as a driver does
        that wakes up late.
        """
        try:
            rows = self._made.query(FOREIGN)
        except psycopg.Error:
            return
        for row in rows:
            if (row["id"], row["attempt_id"]) not in self._forged:
                self._forged.add((row["id"], row["attempt_id"]))
                for report in _forged(row):
                    self.send(Topic.RUN_REPORTS, row["backfill_id"], report, 1)


def _forged(row: Mapping[str, Any]) -> Iterator[Report]:
    """Reports that must have no effect on this run, nor on an attempt that is over."""
    about = {"backfill_id": row["backfill_id"], "attempt_id": row["attempt_id"]}
    error = ErrorInfo(type="Forged", message=FORGED)
    yield RunReported(**about, run_id=row["id"], attempt=max(1, row["attempt"]), state="failed", error=error)
    if row["over"]:
        yield AttemptEnded(**about, state="lost", begun=row["id"], error=error)


def request_of(wish: Wish, folder: Path) -> BackfillRequested:
    """The message for a request."""
    conf: dict[str, Any] = {
        "pipeline": wish.pipeline,
        "folder": str(folder),
        "seconds": wish.seconds,
        "awaits": wish.awaits,
        "failing": sorted(wish.failing),
        "hanging": sorted(wish.hanging),
        "manners": wish.manners,
    }
    return BackfillRequested.model_validate(
        {
            "pipeline": wish.pipeline,
            "from": wish.first.isoformat(),
            "to": wish.last.isoformat(),
            "max_active_runs": wish.limit,
            "on_run_failure": wish.on_run_failure,
            "run_backwards": wish.backwards,
            "reprocess_behavior": wish.reprocess,
            "conf": conf,
            "budget": {"failed_runs": wish.budgets[0]} if wish.budgets else None,
        }
    )


def id_in(shard: int, name: str) -> str:
    """A new id that begins with ``name`` and maps to ``shard``."""
    while True:
        id = f"{name}-{uuid.uuid4().hex[:8]}"
        if partition_of(id, PARTITIONS) == shard:
            return id
