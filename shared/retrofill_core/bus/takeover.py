"""Takes a shard over: a new epoch, the offsets stored in Postgres, and the message that kills whoever handles it.

A killed process reports nothing. So the next owner checks whether the shard advanced since the last
takeover. If not, it handles the next messages one by one and commits, before each, which one it is
about to try. A message that ``DEATHS`` processes died of becomes a dead letter. Extra commits
happen only then (``docs/decisions/deaths-are-counted-late.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from sqlalchemy import Connection, Engine, func, select, update
from sqlalchemy.dialects.postgresql import insert

from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill_core.bus.clients import admin
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Fenced
from retrofill_core.bus.handler import Handler
from retrofill_core.bus.transaction import NO_EPOCH, Transaction, announce_commit, update_shard, write_outbox
from retrofill_core.contract.topics import Service
from retrofill_core.settings import Settings
from retrofill_core.store.tables import SERVICE_TABLES

# One or two processes may have died for another reason.
DEATHS = 3


@dataclass(frozen=True)
class Suspect:
    """A message that was being tried alone when an owner died, and how often that has happened."""

    topic: str
    offset: int
    deaths: int

    def matches(self, record: Record) -> bool:
        """Whether ``record`` is this message."""
        return (self.topic, self.offset) == (record.topic, record.offset)


def find_suspect(
    conn: Connection, service: Service, partition: int, offsets: Mapping[str, int], tried: Suspect
) -> Suspect | None:
    """At a takeover: the message that the last owner was trying, its death counted, unless it was handled."""
    if offsets.get(tried.topic, tried.offset + 1) > tried.offset:
        return None
    shard = SERVICE_TABLES[service.package].shard
    deaths = tried.deaths + 1
    conn.execute(update(shard).where(shard.c.partition == partition).values(trying_deaths=deaths))
    return replace(tried, deaths=deaths)


def unmoved_offsets(conn: Connection, service: Service, partition: int, topics: Collection[str]) -> dict[str, int]:
    """At a takeover: the offsets of ``topics`` that have not moved since the last takeover."""
    table = SERVICE_TABLES[service.package].offset
    found = conn.execute(
        select(table.c.topic, table.c.next_offset, table.c.taken_offset).where(table.c.partition == partition)
    ).all()
    # Added partitions of two topics may have the same number, and other owners.
    rows = [row for row in found if row.topic in topics]
    moved = [row.topic for row in rows if row.taken_offset != row.next_offset]
    if moved:
        ours = (table.c.partition == partition) & (table.c.topic == func.any(moved))
        conn.execute(update(table).where(ours).values(taken_offset=table.c.next_offset))
    return {row.topic: row.next_offset for row in rows if row.topic not in moved}


def record_try(
    engine: Engine, service: Service, partition: int, epoch: int, record: Record | None, deaths: int
) -> None:
    """Commit that ``record``, or nothing, is being tried. Raises ``Fenced`` for a former owner."""
    values = {
        "trying_topic": None if record is None else record.topic,
        "trying_offset": None if record is None else record.offset,
        "trying_deaths": None if record is None else deaths,
    }
    with engine.begin() as conn:
        update_shard(conn, service, partition, epoch, values)


log = get_log(__name__)
REQUEST_SECONDS = 5.0


class Ends:
    """The broker's current first and next offsets of partitions."""

    def __init__(self, client: Callable[[], AdminClient], renew: Callable[[], None], prefix: str) -> None:
        self._client = client
        self._renew = renew
        self._prefix = prefix

    def high_watermarks(self, partitions: Mapping[str, list[int]]) -> dict[tuple[str, int], int]:
        """The next offset of each partition, open transactions included. Raises ``KafkaException``.

        A reader that has reached it has read everything acknowledged before this call.
        """
        return self._ask(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # the client has no types for it

    def earliest_offsets(self, partitions: Mapping[str, list[int]]) -> dict[tuple[str, int], int]:
        """The first offset that still exists. Raises ``KafkaException``."""
        return self._ask(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # the client has no types for it

    def _ask(self, partitions: Mapping[str, list[int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(self._prefix + t, p): spec for t, ps in partitions.items() for p in ps}
        futures = self._client().list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=REQUEST_SECONDS
        )
        try:
            return {(tp.topic.removeprefix(self._prefix), tp.partition): f.result().offset for tp, f in futures.items()}
        except KafkaException:
            # A client caches a partition's leader epoch for minutes. After a broker restart,
            # requests were refused (FENCED_LEADER_EPOCH) for that long.
            self._renew()
            raise


class TopicIds:
    """Kafka's ids of the topics that a service reads; a recreated topic has a new one."""

    def __init__(self, settings: Settings, service: Service, instance: str) -> None:
        self._make = partial(admin, settings, f"{instance}-admin")
        self.admin = self._make()
        self._prefix = settings.topic_prefix
        self._topics = [str(topic) for topic in service.reads]
        self._ids: dict[str, str] = {}
        self.ends = Ends(lambda: self.admin, self.renew, self._prefix)

    def refresh(self) -> dict[str, int]:
        """Read ids and partition counts; returns the counts by topic. Raises ``KafkaException``."""
        try:
            return self._describe()
        except KafkaException:
            # The request goes to the controller. A client once waited for it for minutes although
            # Kafka answered all others; a new client discovers the controller again.
            self.renew()
            raise

    def renew(self) -> None:
        """Replace the client, and with it its cached metadata."""
        self.admin = self._make()

    def _describe(self) -> dict[str, int]:
        counts = {}
        names = TopicCollection([self._prefix + topic for topic in self._topics])
        for name, future in self.admin.describe_topics(names, request_timeout=REQUEST_SECONDS).items():
            description = future.result()
            topic = name.removeprefix(self._prefix)
            self._ids[topic] = str(description.topic_id)
            counts[topic] = len(description.partitions)
        return counts

    def of(self, topic: str) -> str:
        """The id as of the last ``refresh``."""
        return self._ids[topic]


@dataclass(frozen=True)
class Takeover:
    """A takeover's result. ``checks``: seconds from now by key."""

    epoch: int
    offsets: dict[str, int]
    checks: Mapping[str, float]
    # Former owners may have died of the next messages; ``suspect``: of this one.
    careful: bool = False
    suspect: Suspect | None = None


def take_over(
    engine: Engine, service: Service, partition: int, instance: str, topic_ids: TopicIds, handler: Handler
) -> Takeover:
    """Make ``instance`` the owner: increment the epoch, read offsets, get the handler's checks.

    Raises ``KafkaException`` or a database error; then nothing has changed.
    """
    topic_ids.refresh()
    shard = SERVICE_TABLES[service.package].shard
    with engine.begin() as conn:
        epoch, *trying = conn.execute(
            update(shard)
            .where(shard.c.partition == partition)
            .values(epoch=shard.c.epoch + 1, owner=instance, taken_at=func.clock_timestamp())
            .returning(shard.c.epoch, shard.c.trying_topic, shard.c.trying_offset, shard.c.trying_deaths)
        ).one()
        offsets = stored_offsets(conn, service, partition, topic_ids, service.reads)
        # The topic is null unless a message is being tried.
        suspect = find_suspect(conn, service, partition, offsets, Suspect(*trying)) if trying[0] else None
        unmoved = unmoved_offsets(conn, service, partition, offsets)
        checks = dict(handler.taken(conn, partition))
        crash_point("takeover:before-commit")
    crash_point("takeover:committed")
    careful = suspect is not None or has_backlog(topic_ids.ends, partition, unmoved)
    return Takeover(epoch, offsets, checks, careful, suspect)


def has_backlog(ends: Ends, partition: int, offsets: Mapping[str, int]) -> bool:
    """Whether messages wait at these offsets; an unmoved offset may also mean an idle topic."""
    if not offsets:
        return False
    try:
        found = ends.high_watermarks({topic: [partition] for topic in offsets})
    except KafkaException:
        # Being careful only costs time.
        return True
    return any(found[topic, partition] > offset for topic, offset in offsets.items())


def stored_offsets(
    conn: Connection, service: Service, partition: int, topic_ids: TopicIds, topics: Iterable[str]
) -> dict[str, int]:
    """Offsets to resume ``topics`` from, in their order; creates the missing ones."""
    table = SERVICE_TABLES[service.package].offset
    stored = {row.topic: row for row in conn.execute(select(table).where(table.c.partition == partition)).all()}
    offsets = {}
    for topic in map(str, topics):
        row = stored.get(topic)
        if row is not None and row.topic_id == topic_ids.of(topic):
            offsets[topic] = row.next_offset
            continue
        # A partition read for the first time starts at its first offset, a recreated topic at 0.
        start = topic_ids.ends.earliest_offsets({topic: [partition]})[topic, partition] if row is None else 0
        if row is not None:
            log.warning("topic_recreated", topic=topic, partition=partition, was=row.topic_id)
        values = {"topic_id": topic_ids.of(topic), "next_offset": start}
        # Of an added partition, which no epoch protects, another owner may have created it meanwhile, and moved it.
        conn.execute(
            insert(table)
            .values(topic=topic, partition=partition, **values)
            .on_conflict_do_update(
                index_elements=["topic", "partition"], set_=values, where=table.c.topic_id != values["topic_id"]
            )
        )
        ours = (table.c.topic == topic) & (table.c.partition == partition)
        offsets[topic] = conn.execute(select(table.c.next_offset).where(ours)).scalar_one()
    return offsets


def take_over_added(engine: Engine, service: Service, topic: str, partition: int, topic_ids: TopicIds) -> Takeover:
    """Read the offset of a partition that was added after init; its messages are republished to the owner's partition.

    It has no row in the shard table and no epoch. It needs none: its transactions only write the outbox and move one
    offset by compare-and-set, which fails for one of two owners. What ``record_try`` records of other shards is in
    the row of that offset. Raises ``KafkaException`` or a database error."""
    topic_ids.refresh()
    with engine.begin() as conn:
        offsets = stored_offsets(conn, service, partition, topic_ids, [topic])
        suspect = _find_suspect(conn, service, topic, partition)
        unmoved = unmoved_offsets(conn, service, partition, offsets)
    careful = suspect is not None or has_backlog(topic_ids.ends, partition, unmoved)
    return Takeover(NO_EPOCH, offsets, {}, careful, suspect)


def _find_suspect(conn: Connection, service: Service, topic: str, partition: int) -> Suspect | None:
    """The unhandled message that the last owner was trying, its death counted."""
    table = SERVICE_TABLES[service.package].offset
    c = table.c
    row = conn.execute(
        update(table)
        .where(c.topic == topic, c.partition == partition, c.trying_offset >= c.next_offset)
        .values(trying_deaths=c.trying_deaths + 1)
        .returning(c.trying_offset, c.trying_deaths)
    ).first()
    return None if row is None else Suspect(topic, row.trying_offset, row.trying_deaths)


def record_added_try(
    engine: Engine, service: Service, partition: int, offsets: Mapping[str, int], record: Record | None, deaths: int
) -> None:
    """Commit that ``record``, or nothing, is being tried. Raises ``Fenced`` if ``offsets`` moved."""
    table = SERVICE_TABLES[service.package].offset
    c = table.c
    ((topic, next_offset),) = offsets.items()
    tried: dict[str, int | None] = {"trying_offset": None, "trying_deaths": None}
    if record is not None:
        tried = {"trying_offset": record.offset, "trying_deaths": deaths}
    ours = (c.topic == topic) & (c.partition == partition) & (c.next_offset == next_offset)
    with engine.begin() as conn:
        if conn.execute(update(table).where(ours).values(tried)).rowcount != 1:
            raise Fenced(f"{service.name}: another owner moved the offset of {topic} {partition}")


@contextmanager
def added_transaction(
    engine: Engine, service: Service, partition: int, max_message_bytes: int
) -> Iterator[Transaction]:
    """Begin and yield; the caller moves the offset; then write the outbox and commit."""
    with engine.begin() as conn:
        tx = Transaction(conn, service, partition, NO_EPOCH, max_message_bytes)
        yield tx
        crash_point("added:before-commit")
        write_outbox(tx)
    announce_commit(tx)
