"""Partitions that somebody added to a topic after init: what lands there is published again where its owner reads it.

Such a partition has no row in the shard table and so no epoch. It needs none: all that its transactions do is to write the
outbox and to move one offset by compare-and-set, and of two owners only one moves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from retrofill.bus.crash import crash_point
from retrofill.bus.takeover import Taken, TopicIds, stored_offsets
from retrofill.bus.transaction import NO_EPOCH, Transaction, committed, finish
from retrofill.contract.topics import Service


def take_over_added(engine: Engine, service: Service, topic: str, partition: int, topic_ids: TopicIds) -> Taken:
    """Read where to go on, from the beginning the first time. Raises ``KafkaException`` or a database error."""
    topic_ids.refresh()
    with engine.begin() as conn:
        return Taken(NO_EPOCH, stored_offsets(conn, service, partition, topic_ids, [topic]), {})


@contextmanager
def added_transaction(
    engine: Engine, service: Service, partition: int, max_message_bytes: int
) -> Iterator[Transaction]:
    """Begin and hand over; the caller moves the offset; then write the outbox and commit."""
    with engine.begin() as conn:
        tx = Transaction(conn, service, partition, NO_EPOCH, max_message_bytes)
        yield tx
        crash_point("added:before-commit")
        finish(tx)
    committed(tx)
