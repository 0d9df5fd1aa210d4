"""``recover``: find out what Postgres lost, by what Kafka has, and go on beyond it.

Kafka first: it remembers the new epochs before Postgres has them, so a recovery that ends anywhere is just typed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import Connection, Engine, RowMapping, select

from retrofill.admin import lost_time
from retrofill.bus.crash import crash_point
from retrofill.bus.envelope import headers_of
from retrofill.bus.relay.cursor import read_marks
from retrofill.bus.went_back import contradiction
from retrofill.contract.base import Message
from retrofill.contract.runs import RunAttemptLost
from retrofill.contract.states import IntervalStateChanged, interval_key
from retrofill.contract.topics import PLANNER, RUN_STARTER, SERVICES, Topic
from retrofill.domain.run import RunState
from retrofill.settings import Settings
from retrofill.store import recovery as store
from retrofill.store.clock import database_now
from retrofill.store.history import History, read_history
from retrofill.store.outbox import Outgoing, unpack_headers
from retrofill.store.relays import relays
from retrofill.store.tables import installation

# Clocks of services may be behind the database's, whose time an event's row has.
CLOCK_SECONDS = 3600


@dataclass(frozen=True)
class Found:
    """What is known before anything is changed. ``signs`` say, a line each, how it shows that Postgres is not what it was."""

    generation: int
    signs: tuple[str, ...]
    here: History | None


@dataclass
class Recovered:
    """What a recovery did."""

    generation: int
    requeued: int = 0
    # Events of the copy that were published already, by service.
    dropped: dict[str, int] = field(default_factory=dict)


def find(settings: Settings, engine: Engine) -> Found:
    """Look, and change nothing. Raises ``KafkaException``."""
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
            signs.append("this is another Postgres than the one that was recorded")
        elif here.timeline != recorded.timeline:
            signs.append(f"Postgres is on timeline {here.timeline}, it was on {recorded.timeline}")
    for name, row in rows.items():
        said = contradiction(SERVICES[name], marks[name], batch=row.batch, epoch=row.epoch)
        if said is not None:
            signs.append(said.split(":")[0])
    numbers = [row.epoch for row in rows.values()] + [mark.taken for mark in marks.values()]
    return Found(store.generation_of(numbers) + 1, tuple(signs), here)


def recover(settings: Settings, engine: Engine, found: Found) -> Recovered:
    """Go on beyond what was lost. Raises ``KafkaException`` or a database error, and then it is to be typed again."""
    epoch = found.generation * store.SPAN
    cursors = {name: lost_time.fence(settings, service, epoch) for name, service in SERVICES.items()}
    crash_point("recover:fenced")
    done = Recovered(found.generation)
    with engine.begin() as conn:
        # First, so that a service that is at work after all does nothing more.
        store.fence_owners(conn, found.generation)
        for name, service in SERVICES.items():
            if store.set_relay(conn, service.package, epoch, cursors[name]):
                done.dropped[name] = _drop_published(conn, settings, service.package)
        reports = store.offsets(conn, Topic.RUN_REPORTS, RUN_STARTER.package)
        events = store.offsets(conn, Topic.RUN_EVENTS, PLANNER.package)
        seen = lost_time.read_attempts(settings, {**reports, **events})
        margin = (settings.max_lost_attempts + 1) * found.generation
        given_up = store.requeue_runs(conn, seen.attempts, seen.publications, margin)
        store.skip_reports(conn, {place: end for place, end in seen.ends.items() if place in reports})
        store.raise_ids(conn, found.generation)
        store.tell(conn, RUN_STARTER.package, [one for row in given_up for one in _lost(row, conn)])
        store.record_history(conn, found.here)
        done.requeued = len(given_up)
        crash_point("recover:before-commit")
    return done


def _drop_published(conn: Connection, settings: Settings, package: str) -> int:
    """Remove the rows of an outbox whose events Kafka has; how many."""
    rows = store.waiting(conn, package)
    if not rows:
        return 0
    since = min(row["created_at"] for row in rows).timestamp() - CLOCK_SECONDS
    published = lost_time.read_ids(settings, {row["topic"] for row in rows}, max(0, int(since * 1000)))
    gone = [row["id"] for row in rows if _identity(row) in published[row["topic"]]]
    store.drop(conn, package, gone)
    return len(gone)


def _identity(row: RowMapping) -> bytes:
    headers = dict(unpack_headers(row["headers"]))
    return lost_time.identity(row["key"], row["value"], headers.get("ce_id"))


def _lost(row: RowMapping, conn: Connection) -> list[Outgoing]:
    """What subscribers are told of an attempt that was given up, as of one whose driver was lost."""
    facts = {
        "backfill_id": row["backfill_id"],
        "pipeline": row["pipeline"],
        "run_id": row["id"],
        "attempt": row["attempt"],
        "interval_start": row["interval_start"],
        "interval_end": row["interval_end"],
        "at": database_now(conn),
    }
    key = interval_key(row["pipeline"], row["interval_start"])
    return [
        _outgoing(Topic.RUN_EVENTS, row["backfill_id"], RunAttemptLost(**facts, state=RunState.QUEUED)),
        _outgoing(Topic.INTERVAL_STATES, key, IntervalStateChanged(**facts, state="queued")),
    ]


def _outgoing(topic: Topic, key: str, message: Message) -> Outgoing:
    headers = tuple((name, value.encode()) for name, value in headers_of(message, RUN_STARTER.name).items())
    return Outgoing(topic, key.encode(), message.encode(), headers)
