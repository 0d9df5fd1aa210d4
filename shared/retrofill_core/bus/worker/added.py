"""Partitions added to a topic after init: their messages are republished to the owner's partition.

Such a partition has no row in the shard table and no epoch. It needs none: its transactions only
write the outbox and move one offset by compare-and-set, which fails for one of two owners. What
``deaths.py`` records of a message is in the row of that offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, update

from retrofill.system.crash import crash_point
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Fenced
from retrofill_core.bus.takeover import Takeover, TopicIds, has_backlog, stored_offsets
from retrofill_core.bus.transaction import NO_EPOCH, Transaction, announce_commit, write_outbox
from retrofill_core.bus.worker.deaths import Suspect, unmoved_offsets
from retrofill_core.contract.topics import Service
from retrofill_core.store.tables import SERVICE_TABLES


def take_over_added(engine: Engine, service: Service, topic: str, partition: int, topic_ids: TopicIds) -> Takeover:
    """Read the offset to resume from. Raises ``KafkaException`` or a database error."""
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
