"""Taking a shard over: a new epoch, and the offsets that Postgres has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from sqlalchemy import Connection, Engine, func, select, update
from sqlalchemy.dialects.postgresql import insert

from retrofill.bus.clients import admin
from retrofill.bus.crash import crash_point
from retrofill.bus.handler import Handler
from retrofill.bus.worker.deaths import Suspect, suspect_of, where_it_stands
from retrofill.contract.topics import Service
from retrofill.settings import Settings
from retrofill.store.tables import SERVICE_TABLES

log = structlog.get_logger(__name__)
REQUEST_SECONDS = 5.0


class Ends:
    """Where the ends of partitions are now, asked of the broker."""

    def __init__(self, client: Callable[[], AdminClient], renew: Callable[[], None], prefix: str) -> None:
        self._client = client
        self._renew = renew
        self._prefix = prefix

    def high_watermarks(self, partitions: Mapping[str, list[int]]) -> dict[tuple[str, int], int]:
        """The next offset of each partition, open transactions included. Raises ``KafkaException``.

        To have read up to it is to have read everything that was acknowledged before this was called.
        """
        return self._ask(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # the client has no types for it

    def beginnings(self, partitions: Mapping[str, list[int]]) -> dict[tuple[str, int], int]:
        """The first offset that is still there. Raises ``KafkaException``."""
        return self._ask(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # the client has no types for it

    def _ask(self, partitions: Mapping[str, list[int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(self._prefix + t, p): spec for t, ps in partitions.items() for p in ps}
        futures = self._client().list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=REQUEST_SECONDS
        )
        try:
            return {(tp.topic.removeprefix(self._prefix), tp.partition): f.result().offset for tp, f in futures.items()}
        except KafkaException:
            # A client keeps what it knows of a partition's leader for minutes. After a broker was started anew it was seen to
            # ask with the leader epoch of before, and to be refused (FENCED_LEADER_EPOCH), for as long.
            self._renew()
            raise


class TopicIds:
    """Kafka's ids of the topics that a service reads: a topic made anew has another."""

    def __init__(self, settings: Settings, service: Service, instance: str) -> None:
        self._make = partial(admin, settings, f"{instance}-admin")
        self.admin = self._make()
        self._prefix = settings.topic_prefix
        self._topics = [str(topic) for topic in service.reads]
        self._ids: dict[str, str] = {}
        self.ends = Ends(lambda: self.admin, self.renew, self._prefix)

    def refresh(self) -> dict[str, int]:
        """Ask the broker; returns the partition count of each topic. Raises ``KafkaException`` where one is missing."""
        try:
            return self._describe()
        except KafkaException:
            # The question goes to the controller. A client was seen that waited for it for minutes, while Kafka answered all
            # others, and took no shard over: a new one asks every broker anew who it is.
            self.renew()
            raise

    def renew(self) -> None:
        """Make a new client, which knows nothing of before."""
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
        """The id that was last seen."""
        return self._ids[topic]


@dataclass(frozen=True)
class Taken:
    """What a take-over found."""

    epoch: int
    offsets: dict[str, int]
    checks: Mapping[str, float]
    # Former owners may have died of what comes next; and of which message for certain.
    careful: bool = False
    suspect: Suspect | None = None


def take_over(
    engine: Engine, service: Service, partition: int, instance: str, topic_ids: TopicIds, handler: Handler
) -> Taken:
    """Make ``instance`` the owner: increment the epoch, read the offsets, and ask the handler what to look at.

    Raises ``KafkaException`` or a database error, and then nothing was changed.
    """
    topic_ids.refresh()
    shard = SERVICE_TABLES[service.package].shard
    with engine.begin() as conn:
        row = conn.execute(
            update(shard)
            .where(shard.c.partition == partition)
            .values(epoch=shard.c.epoch + 1, owner=instance, taken_at=func.clock_timestamp())
            .returning(shard.c.epoch, shard.c.trying_topic, shard.c.trying_offset, shard.c.trying_deaths)
        ).one()
        offsets = stored_offsets(conn, service, partition, topic_ids, service.reads)
        suspect = suspect_of(conn, service, partition, offsets, row)
        standing = where_it_stands(conn, service, partition)
        checks = dict(handler.taken(conn, partition))
        crash_point("takeover:before-commit")
    crash_point("takeover:committed")
    careful = suspect is not None or anything_after(topic_ids.ends, partition, standing)
    return Taken(row.epoch, offsets, checks, careful, suspect)


def anything_after(ends: Ends, partition: int, offsets: Mapping[str, int]) -> bool:
    """Whether there is anything to handle from these offsets on: a topic that is idle stands still too."""
    if not offsets:
        return False
    try:
        found = ends.high_watermarks({topic: [partition] for topic in offsets})
    except KafkaException:
        # To be careful costs time, and nothing else.
        return True
    return any(found[topic, partition] > offset for topic, offset in offsets.items())


def stored_offsets(
    conn: Connection, service: Service, partition: int, topic_ids: TopicIds, topics: Iterable[str]
) -> dict[str, int]:
    """Where to go on reading ``topics``, in their order; made where this partition is read for the first time."""
    table = SERVICE_TABLES[service.package].offset
    stored = {row.topic: row for row in conn.execute(select(table).where(table.c.partition == partition)).all()}
    offsets = {}
    for topic in map(str, topics):
        row = stored.get(topic)
        if row is not None and row.topic_id == topic_ids.of(topic):
            offsets[topic] = row.next_offset
            continue
        # The first time, from what is still there; a topic made anew has nothing before its first message.
        start = topic_ids.ends.beginnings({topic: [partition]})[topic, partition] if row is None else 0
        if row is not None:
            log.warning("topic_recreated", topic=topic, partition=partition, was=row.topic_id)
        values = {"topic_id": topic_ids.of(topic), "next_offset": start}
        conn.execute(
            insert(table)
            .values(topic=topic, partition=partition, **values)
            .on_conflict_do_update(index_elements=["topic", "partition"], set_=values)
        )
        offsets[topic] = start
    return offsets
