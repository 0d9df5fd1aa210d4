"""``retrofill recover``: find what Postgres lost by what Kafka has, and continue beyond it.

Kafka stores the new epochs before Postgres does, so a recovery that stops anywhere can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import Connection, Engine, select

from retrofill.system.crash import crash_point
from retrofill_core.bus.envelope import headers_of
from retrofill_core.bus.relay.cursor import read_marks
from retrofill_core.bus.went_back import contradiction
from retrofill_core.contract.base import Message
from retrofill_core.contract.partitioning import place_of
from retrofill_core.contract.runs import RunAttemptLost
from retrofill_core.contract.states import IntervalStateChanged, interval_key
from retrofill_core.contract.topics import PLANNER, RUN_STARTER, SERVICES, Topic
from retrofill_core.domain.run import RunState
from retrofill_core.settings import Settings
from retrofill_core.store import recovery as store
from retrofill_core.store.clock import database_now
from retrofill_core.store.history import History, read_history
from retrofill_core.store.outbox import Outgoing, Stored, unpack_headers
from retrofill_core.store.relays import relays
from retrofill_core.store.tables import installation
from retrofill_tools.admin import lost_time

# Kafka's timestamps may be behind the database's clock, which outbox rows use.
CLOCK_SECONDS = 3600


@dataclass(frozen=True)
class Found:
    """What was found before any change.

    ``signs`` are one-line indications that Postgres lost commits.
    """

    generation: int
    signs: tuple[str, ...]
    here: History | None


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
        conflict = contradiction(SERVICES[name], marks[name], batch=row.batch, epoch=row.epoch)
        if conflict is not None:
            signs.append(conflict.split(":")[0])
    numbers = [row.epoch for row in rows.values()] + [mark.taken for mark in marks.values()]
    return Found(store.generation_of(numbers) + 1, tuple(signs), here)


def recover(settings: Settings, engine: Engine, found: Found) -> Recovered:
    """Continue beyond what was lost.

    Raises ``KafkaException`` or a database error; then run it again.
    """
    epoch = found.generation * store.SPAN
    cursors = {name: lost_time.fence(settings, service, epoch) for name, service in SERVICES.items()}
    crash_point("recover:fenced")
    done = Recovered(found.generation)
    with engine.begin() as conn:
        # First, so that a service still running commits nothing more.
        store.fence_owners(conn, found.generation)
        for name, service in SERVICES.items():
            if store.set_relay(conn, service.package, epoch, cursors[name]):
                done.dropped[name] = _drop_published(conn, settings, service.package)
        reports = store.offsets(conn, Topic.RUN_REPORTS, RUN_STARTER.package)
        events = store.offsets(conn, Topic.RUN_EVENTS, PLANNER.package)
        seen = lost_time.read_runs(settings, {**reports, **events})
        margin = (settings.max_lost_attempts + 2) * found.generation
        given_up = store.requeue_runs(conn, seen.attempts, seen.publications, margin)
        store.skip_reports(conn, {place: end for place, end in seen.ends.items() if place in reports})
        store.raise_ids(conn, found.generation)
        store.publish(conn, RUN_STARTER.package, [one for row in given_up for one in _lost(row, conn)])
        store.record_history(conn, found.here)
        done.requeued = len(given_up)
        crash_point("recover:before-commit")
    return done


def _drop_published(conn: Connection, settings: Settings, package: str) -> int:
    """Delete outbox rows whose events are in Kafka; returns their number."""
    rows = store.waiting(conn, package)
    if not rows:
        return 0
    since = min(row.created_at for row in rows).timestamp() - CLOCK_SECONDS
    published = lost_time.read_ids(settings, {row.topic for row in rows}, max(0, int(since * 1000)))
    duplicates = [row.id for row in rows if _identity(row, settings.partitions) in published[row.topic]]
    store.drop(conn, package, duplicates)
    return len(duplicates)


def _identity(row: Stored, partitions: int) -> bytes:
    headers = dict(unpack_headers(row.headers))
    return lost_time.identity(place_of(row.key, partitions), row.key, row.value, headers.get("ce_id"))


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
