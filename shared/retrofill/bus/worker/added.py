"""Partitions added to a topic after init: their messages are republished to the owner's partition.

Such a partition has no row in the shard table and no epoch. It needs none: its transactions only
write the outbox and move one offset by compare-and-set, which fails for one of two owners.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from retrofill.bus.crash import crash_point
from retrofill.bus.takeover import Takeover, TopicIds, stored_offsets
from retrofill.bus.transaction import NO_EPOCH, Transaction, announce_commit, write_outbox
from retrofill.contract.topics import Service


def take_over_added(engine: Engine, service: Service, topic: str, partition: int, topic_ids: TopicIds) -> Takeover:
    """Read the offset to resume from. Raises ``KafkaException`` or a database error."""
    topic_ids.refresh()
    with engine.begin() as conn:
        return Takeover(NO_EPOCH, stored_offsets(conn, service, partition, topic_ids, [topic]), {})


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
