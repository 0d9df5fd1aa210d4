"""``retrofill recover``: find what Postgres lost by what Kafka has, and continue beyond it.

Everything lost is after the offsets stored in Postgres, from which Kafka is read. Kafka stores the new epochs before
Postgres does, so a recovery that stops anywhere can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage
from sqlalchemy import Connection, Engine, select

from retrofill.system.crash import crash_point
from retrofill_core.bus.clients import producer, reader
from retrofill_core.bus.envelope import headers_of
from retrofill_core.bus.relay.cursor import CURSOR_PARTITION, TAKEN_KEY, read_cursor, read_marks
from retrofill_core.bus.went_back import contradiction
from retrofill_core.contract.base import Message
from retrofill_core.contract.runs import IntervalStateChanged, RunAttemptLost, interval_key
from retrofill_core.contract.topics import ANY, PLANNER, RUN_STARTER, SERVICES, Service, Topic, place_of
from retrofill_core.domain.run import RunState
from retrofill_core.settings import Settings
from retrofill_core.store import recovery as store
from retrofill_core.store.history import SPAN, Timeline, generation_of, read_history, relays
from retrofill_core.store.outbox import Outgoing, Stored, unpack_headers
from retrofill_core.store.sql import database_now
from retrofill_core.store.tables import installation

# Kafka's timestamps may be behind the database's clock, which outbox rows use.
CLOCK_SECONDS = 3600
KAFKA_SECONDS = 30.0
# (topic without prefix, partition) → offset.
Offsets = dict[tuple[str, int], int]


@dataclass(frozen=True)
class Found:
    """What was found before any change.

    ``signs`` are one-line indications that Postgres lost commits.
    """

    generation: int
    signs: tuple[str, ...]
    here: Timeline | None


@dataclass
class Recovered:
    """Result of a recovery."""

    generation: int
    requeued: int = 0
    # Outbox rows already published, by service.
    dropped: dict[str, int] = field(default_factory=dict)


def find(settings: Settings, engine: Engine) -> Found:
    """Check Postgres against Kafka without changes. Raises ``KafkaException``."""
    topics = {name: service.cursor_topic(settings.topic_prefix) for name, service in SERVICES.items()}
    read = read_marks(settings, topics.values(), "retrofill-recover")
    if len(read) < len(topics):
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "log in as for 'retrofill init'"))
    marks = {name: read[topic] for name, topic in topics.items()}
    with engine.begin() as conn:
        rows = relays(conn)
        here = read_history(conn)
        recorded = conn.execute(select(installation.c.system_identifier, installation.c.timeline)).one()
    signs = []
    if here is not None and recorded.system_identifier is not None:
        if here.system_identifier != recorded.system_identifier:
            signs.append("this is not the recorded Postgres")
        elif here.timeline != recorded.timeline:
            signs.append(f"Postgres is on timeline {here.timeline}, but {recorded.timeline} is recorded")
    for name, row in rows.items():
        conflict = contradiction(SERVICES[name], marks[name], row)
        if conflict is not None:
            signs.append(conflict.split(":")[0])
    numbers = [row.epoch for row in rows.values()] + [mark.taken for mark in marks.values()]
    return Found(max(map(generation_of, numbers)) + 1, tuple(signs), here)


def recover(settings: Settings, engine: Engine, found: Found) -> Recovered:
    """Continue beyond what was lost.

    Raises ``KafkaException`` or a database error; then run it again.
    """
    epoch = found.generation * SPAN
    cursors = {name: fence(settings, service, epoch) for name, service in SERVICES.items()}
    crash_point("recover:fenced")
    done = Recovered(found.generation)
    with engine.begin() as conn:
        # Before any change: only on the recorded timeline is one accepted.
        store.record_history(conn, found.here)
        # Next, so that a service still running commits nothing more.
        store.jump_to(conn, found.generation)
        for name, service in SERVICES.items():
            if store.set_relay(conn, service.package, cursors[name]):
                done.dropped[name] = _drop_published(conn, settings, service.package)
        reports = store.offsets(conn, Topic.RUN_REPORTS, RUN_STARTER.package)
        events = store.offsets(conn, Topic.RUN_EVENTS, PLANNER.package)
        seen = read_runs(settings, {**reports, **events})
        margin = (settings.max_lost_attempts + 2) * found.generation
        given_up = store.requeue_runs(conn, seen.attempts, seen.publications, margin)
        store.skip_reports(conn, {place: end for place, end in seen.ends.items() if place in reports})
        store.publish(conn, RUN_STARTER.package, [one for row in given_up for one in _lost(row, conn)])
        done.requeued = len(given_up)
        crash_point("recover:before-commit")
    return done


def _drop_published(conn: Connection, settings: Settings, package: str) -> int:
    """Delete outbox rows whose events are in Kafka; returns their number."""
    rows = store.waiting(conn, package)
    if not rows:
        return 0
    since = min(row.created_at for row in rows).timestamp() - CLOCK_SECONDS
    published = read_ids(settings, {row.topic for row in rows}, max(0, int(since * 1000)))
    duplicates = [row.id for row in rows if _identity(row, settings.partitions) in published[row.topic]]
    store.drop(conn, package, duplicates)
    return len(duplicates)


def _identity(row: Stored, partitions: int) -> bytes:
    headers = dict(unpack_headers(row.headers))
    return identity(place_of(row.key, partitions), row.key, row.value, headers.get("ce_id"))


def _lost(row: store.Begun, conn: Connection) -> list[Outgoing]:
    """Events of an attempt that was given up, the same as for a lost driver."""
    facts = {
        "backfill_id": row.backfill_id,
        "pipeline": row.pipeline,
        "run_id": row.id,
        "undoes_run_id": row.restores,
        "attempt": row.attempt,
        "interval_start": row.interval_start,
        "interval_end": row.interval_end,
        "at": database_now(conn),
    }
    key = interval_key(row.pipeline, row.interval_start)
    lost = RunAttemptLost(**facts, state=RunState.QUEUED, counted=False)
    events = [_outgoing(Topic.RUN_EVENTS, row.backfill_id, lost)]
    if row.restores is None:
        events.append(_outgoing(Topic.INTERVAL_STATES, key, IntervalStateChanged(**facts, state="queued")))
    return events


def _outgoing(topic: Topic, key: str, message: Message) -> Outgoing:
    headers = tuple((name, value.encode()) for name, value in headers_of(message, RUN_STARTER.name).items())
    return Outgoing(topic, key.encode(), message.encode(), headers)


@dataclass
class Seen:
    """The highest attempt and publication by run id, and the offsets up to which Kafka was read."""

    attempts: dict[int, int] = field(default_factory=dict)
    publications: dict[int, int] = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)

    def add(self, value: bytes | None) -> None:
        """Add a message of ``run-reports`` or ``run-events``. Undecodable ones are ignored."""
        try:
            body = json.loads(value or b"null")
        except ValueError:
            return
        if not isinstance(body, dict):
            return
        run, attempt, publication = body.get("run_id"), body.get("attempt", 0), body.get("publication", 0)
        if isinstance(run, int) and isinstance(attempt, int) and isinstance(publication, int):
            self.attempts[run] = max(attempt, self.attempts.get(run, 0))
            self.publications[run] = max(publication, self.publications.get(run, 0))


def read_runs(settings: Settings, starts: Offsets) -> Seen:
    """Read ``run-reports`` and ``run-events`` from ``starts`` to their current ends.

    Raises ``KafkaException``.
    """
    seen = Seen()

    def take(_: str, message: KafkaMessage) -> None:
        seen.add(message.value())

    seen.ends = _read_all(settings, starts, take)
    return seen


def read_ids(settings: Settings, topics: Iterable[str], since_ms: int) -> dict[str, set[bytes]]:
    """``identity`` of all messages published since ``since_ms``, by topic.

    Raises ``KafkaException``.
    """
    found: dict[str, set[bytes]] = {topic: set() for topic in topics}

    def take(topic: str, message: KafkaMessage) -> None:
        ce_id = dict(message.headers() or ()).get("ce_id")
        found[topic].add(identity(message.partition() or 0, message.key(), message.value(), ce_id))

    with _reader(settings) as consumer:
        places = [
            TopicPartition(settings.topic_prefix + topic, p, since_ms)
            for topic in found
            for p in range(settings.partitions)
        ]
        starts = {
            (tp.topic.removeprefix(settings.topic_prefix), tp.partition): tp.offset
            for tp in consumer.offsets_for_times(places, timeout=KAFKA_SECONDS)
            # Negative: nothing was published since.
            if tp.offset >= 0
        }
    _read_all(settings, starts, take)
    return found


def identity(partition: int, key: bytes | None, value: bytes | None, ce_id: bytes | str | None) -> bytes:
    """Identifies a message: its partition, if it has a key, its key, and its ``ce_id``, or value if it has none.

    The ``ce_id`` is not enough: a request without a key, or on a wrong partition, has that of its republished copy.
    """
    place = str(partition if key else ANY).encode()
    id = ce_id.encode() if isinstance(ce_id, str) else ce_id
    return b"\0".join((place, key or b"", id or value or b""))


def fence(settings: Settings, service: Service, epoch: int) -> int:
    """Fence the service's relays, write ``epoch`` to the cursor topic, and return the cursor.

    From here on Kafka stores ``epoch``, whatever happens to Postgres. Raises ``KafkaException``.
    """
    topic = service.cursor_topic(settings.topic_prefix)
    # librdkafka logs that it waits for an open transaction, which means nothing to a user.
    # All ids: the older Postgres may not know which of them the relay used last.
    for id in service.transactional_ids(settings.topic_prefix):
        client = producer(settings, "retrofill-recover", **{"transactional.id": id, "log_level": 2})
        client.init_transactions(KAFKA_SECONDS)
    mark = str(epoch).encode()
    client.begin_transaction()
    client.produce(topic, key=TAKEN_KEY, value=mark, partition=CURSOR_PARTITION)
    client.flush(KAFKA_SECONDS)
    client.commit_transaction(KAFKA_SECONDS)
    return read_cursor(settings, topic, "retrofill-recover", mark).cursor


def _reader(settings: Settings) -> closing[Consumer]:
    return closing(reader(settings, "retrofill-recover"))


def _read_all(
    settings: Settings, starts: Mapping[tuple[str, int], int], take: Callable[[str, KafkaMessage], None]
) -> Offsets:
    """Read from ``starts`` to the current ends, which it returns. Deleted records are skipped."""
    prefix = settings.topic_prefix
    ends: Offsets = {}
    with _reader(settings) as consumer:
        places = []
        for (topic, partition), start in starts.items():
            low, high = consumer.get_watermark_offsets(TopicPartition(prefix + topic, partition), KAFKA_SECONDS)
            ends[topic, partition] = max(start, high)
            places.append(TopicPartition(prefix + topic, partition, min(max(low, start), high)))
        consumer.assign(places)
        left = set(starts)
        while left:
            message = consumer.poll(KAFKA_SECONDS)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            error = message.error()
            place = ((message.topic() or "").removeprefix(prefix), message.partition() or 0)
            if error is None:
                take(place[0], message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(place)
            else:
                raise KafkaException(error)
    return ends
